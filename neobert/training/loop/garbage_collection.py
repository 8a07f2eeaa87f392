"""Garbage collection between steps instead of during them.

By itself it runs whenever enough objects were made, in the middle of a step, over everything that importing
and building left behind. Here that is set aside, and what came since is collected between steps, where the
device still has work in its queue.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer


@contextmanager
def collecting_between_steps() -> Iterator[None]:
    """Let the collector run only when it is called, and only over what the block makes."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Collector:
    """Collects what the steps since the last time left in cycles. A hook.

    The first time, what the compilers left behind in the first steps is set aside with the rest: going over
    it at every line took a quarter of a second.
    """

    def __init__(self) -> None:
        self._has_set_aside = False

    def __call__(self, _trainer: Trainer, _report: StepReport) -> None:
        """Collect."""
        gc.collect()
        if not self._has_set_aside:
            gc.freeze()
            self._has_set_aside = True
