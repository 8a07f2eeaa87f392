"""Pinned hashes of the shipped profiles in `profiles.lock`."""

from __future__ import annotations

import json
from pathlib import Path

from neobert.errors import EXIT_USAGE, ProjectError

LOCK = Path(__file__).parent / "profiles.lock"


def read_pins() -> dict[str, str]:
    """Return name to pinned hash; empty without a lock. Raises ProjectError if the lock is damaged."""
    try:
        pins = json.loads(LOCK.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(f"{error}") from None
    if not isinstance(pins, dict) or not all(isinstance(digest, str) for digest in pins.values()):
        raise _damaged("not a mapping of names to hashes")
    return pins


def write_pins(pins: dict[str, str]) -> None:
    """Write these hashes to the lock."""
    LOCK.write_text(json.dumps(pins, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _damaged(reason: str) -> ProjectError:
    return ProjectError(
        code="CFG005",
        message=f"profiles.lock cannot be read: {reason}",
        hint="restore profiles.lock, or review every profile and run `python -m profiles.lock --write`",
        place=str(LOCK),
        exit_code=EXIT_USAGE,
    )
