"""Hooks: actions between two steps, in stages. Garbage collection is one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from neobert.training.state.trainer import Trainer


class Stage(IntEnum):
    """Stages between two steps, in this order. Hooks of one stage do not depend on each other's order."""

    CHECK = 0
    """End what belongs to the step alone: traces, late compilations, a request through the run directory."""
    COUNT = 1
    """Update the counters of degradation, over all ranks."""
    MEASURE = 2
    """Return metrics of training. The host waits for the device here."""
    EVALUATE = 3
    """Return metrics of the evaluation; a stop may leave this undone, and the line of the step open."""
    RECORD = 4
    """Write the line: one hook, the only one that does."""
    REACT = 5
    """Read the line: warn, keep what it says for the next checkpoint."""
    ANNOUNCE = 6
    """Repeat state and warnings in the heartbeat."""
    SAVE = 7
    """Begin a checkpoint. The line of its step is written by now."""
    LAST = 8
    """Request a stop, prepare for the next step; hooks from outside the run."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The step that hooks follow.

    Attributes:
        step: optimizer steps done.
        metrics: the step's line of metrics.jsonl, `step` included. Complete from Stage.RECORD on.
    """

    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An action after certain steps, on all ranks.

    Attributes:
        name: name under which its time is counted.
        act: the action. Metrics that it returns are added to the line of the step.
        every: steps between two calls; 0: only at the start or at the end.
        at_start: also before the first step.
        at_end: also after the last step.
    """

    name: str
    act: Callable[[Trainer, StepReport], Mapping[str, Any] | None]
    every: int
    stage: Stage = Stage.LAST
    at_start: bool = False
    at_end: bool = True

    def is_due(self, step: int, max_steps: int) -> bool:
        """Return whether the hook runs after this step."""
        if step == 0:
            return self.at_start
        if step == max_steps:
            return self.at_end
        return self.every > 0 and step % self.every == 0


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
