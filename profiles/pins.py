"""The pinned hashes of the shipped profiles, as `profiles.lock` holds them."""

from __future__ import annotations

import json
from pathlib import Path

LOCK = Path(__file__).parent / "profiles.lock"


def read_pins() -> dict[str, str]:
    """Name to hash, as locked."""
    pins: dict[str, str] = json.loads(LOCK.read_text(encoding="utf-8")) if LOCK.exists() else {}
    return pins


def write_pins(pins: dict[str, str]) -> None:
    """Lock these hashes."""
    LOCK.write_text(json.dumps(pins, indent=2, sort_keys=True) + "\n", encoding="utf-8")
