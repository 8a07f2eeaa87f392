"""Frequency of Python's cyclic garbage collector at start-up."""

from __future__ import annotations

import gc

OBJECTS_BETWEEN_LOOKS = 100_000


def collect_rarely() -> None:
    """Run the garbage collector 100 times less often: objects created at start-up are not garbage.

    Collections took an eighth of the trainer's start-up, and a twentieth of `lint`.
    """
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)
