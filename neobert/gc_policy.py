"""Settings of Python's cyclic garbage collector that speed up the start and the end of a process."""

from __future__ import annotations

import atexit
import gc

COLLECTION_THRESHOLD = 100_000


def collect_rarely() -> None:
    """Run the garbage collector less often (threshold 100,000): objects created at start-up are not garbage.

    Garbage collection took 1/8 of the trainer's start-up time, and 1/20 of `neobert-launch lint`.
    """
    gc.set_threshold(COLLECTION_THRESHOLD)


def skip_collection_at_exit() -> None:
    """Exclude all objects from garbage collection at exit, which took 1/8 of the time of `lint`.

    Only garbage in cycles is affected. Streams are flushed, and exit functions run as usual.
    """
    atexit.register(gc.freeze)
