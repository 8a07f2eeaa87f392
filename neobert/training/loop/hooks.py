"""Hooks: actions that run between two steps, in stages; and the garbage collection hook."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from neobert.training.state.trainer import Trainer


class Stage(IntEnum):
    """Stages of hooks between two steps, in execution order. Hooks of one stage are independent."""

    CHECK = 0
    """End traces, count recompilations, check the run directory for a stop request."""
    COUNT = 1
    """Sum the counters of recompiles, kernel fallbacks and read retries over all ranks."""
    MEASURE = 2
    """Compute the training metrics. The host waits for the device here."""
    EVALUATE = 3
    """Evaluate. A stop request may skip this and leave the step's metrics incomplete."""
    RECORD = 4
    """Write the step's metrics. Exactly one hook has this stage."""
    REACT = 5
    """Use the step's metrics: warnings, early stopping, evaluation for the next checkpoint."""
    ANNOUNCE = 6
    """Write state and warnings to the heartbeat."""
    SAVE = 7
    """Start a checkpoint. The metrics of its step have been written."""
    LAST = 8
    """Request a stop or prepare the next step; default stage of additional hooks."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """Step number and metrics, passed to each hook.

    Attributes:
        step: optimizer steps done.
        metrics: the step's line of metrics.jsonl, including `step`. Complete from Stage.RECORD on.
    """

    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An action after certain steps, on all ranks.

    Attributes:
        name: name under which the stopwatch counts its time.
        act: the action. Metrics that it returns are added to the step's metrics.
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
def collect_between_steps() -> Iterator[None]:
    """Disable automatic garbage collection inside the `with` block, and exclude all older objects from it.

    By default Python collects in the middle of a step, over everything that imports and set-up created.
    `GarbageCollector` collects between steps, while the device still has queued work.
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


class GarbageCollector:
    """Hook that runs the garbage collector over objects created since the last call.

    The first call also freezes the objects that compilation created in the first steps: scanning them took a
    quarter of a second per call.
    """

    def __init__(self) -> None:
        self._has_set_aside = False

    def __call__(self, _trainer: Trainer, _report: StepReport) -> None:
        """Run the garbage collector."""
        gc.collect()
        if not self._has_set_aside:
            gc.freeze()
            self._has_set_aside = True
