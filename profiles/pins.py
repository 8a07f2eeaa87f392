"""The pinned hashes of the shipped profiles, as `profiles.lock` holds them."""

from __future__ import annotations

import json
from pathlib import Path

from neobert.errors import EXIT_USAGE, ProjectError

LOCK = Path(__file__).parent / "profiles.lock"


def read_pins() -> dict[str, str]:
    """Name to hash, as locked; none without a lock. Raises ProjectError where the lock is damaged."""
    try:
        pins = json.loads(LOCK.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(f"it cannot be read: {error}") from None
    if not isinstance(pins, dict) or not all(isinstance(digest, str) for digest in pins.values()):
        raise _damaged("it is no mapping of names to hashes")
    return pins


def write_pins(pins: dict[str, str]) -> None:
    """Lock these hashes."""
    LOCK.write_text(json.dumps(pins, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _damaged(why: str) -> ProjectError:
    return ProjectError(
        code="CFG005",
        message=f"the lock of the profiles is damaged: {why}",
        hint="restore it; or review every profile, then `python -m profiles.lock --write`",
        place=str(LOCK),
        exit_code=EXIT_USAGE,
    )
