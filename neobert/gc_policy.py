"""How often Python's cyclic collector looks for garbage in a process that begins."""

from __future__ import annotations

import gc

OBJECTS_BETWEEN_LOOKS = 100_000


def collect_rarely() -> None:
    """Look a hundredth as often as by default: what a process imports and reads as it begins is no garbage.

    Looking took an eighth of the time until a trainer trains, and a twentieth of a lint.
    """
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)
