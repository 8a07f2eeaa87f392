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
    """End traces, count late compilations, look for a request through the run directory."""
    COUNT = 1
    """Update the counters of degradation, over all ranks."""
    MEASURE = 2
    """Return metrics of training. The host waits for the device here."""
    EVALUATE = 3
    """Return metrics of the evaluation; a stop may prevent it and leave the line of the step incomplete."""
    RECORD = 4
    """Write the line: exactly one hook does."""
    REACT = 5
    """Read the line: warn, keep its evaluation for the next checkpoint."""
    ANNOUNCE = 6
    """Repeat state and warnings in the heartbeat."""
    SAVE = 7
    """Start a checkpoint. The line of its step is written by now."""
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

    def is_due(self, step: int, max_steps: int, first_step: int = 0) -> bool:
        """Return whether the hook runs after this step of a run that begins at `first_step`."""
        if step == first_step:
            return self.at_start
        if step == max_steps:
            return self.at_end
        return self.every > 0 and step % self.every == 0


@contextmanager
def collecting_between_steps() -> Iterator[None]:
    """Let the garbage collector run only when it is called, and only over objects of the block.

    By default it runs in the middle of a step, over everything that imports and set-up left. `Collector`
    calls it between steps, where the device still has work in its queue.
    """
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
    """A hook that collects the reference cycles of the steps since the last call.

    The first call also freezes what the compilers left from the first steps: collecting over it took a
    quarter of a second at every line.
    """

    def __init__(self) -> None:
        self._has_set_aside = False

    def __call__(self, _trainer: Trainer, _report: StepReport) -> None:
        """Collect the garbage of the steps since the last call."""
        gc.collect()
        if not self._has_set_aside:
            gc.freeze()
            self._has_set_aside = True
