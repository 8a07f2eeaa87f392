"""Counters that stay flat in a healthy run: recompiles, kernel fallbacks, read retries.

An increase is logged and counted in the heartbeat's `warnings`. Recompiles and fallbacks that keep increasing
end the run with a checkpoint: the weights are valid, but steps are slower than preflight measured.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from torch._dynamo.utils import get_compilation_metrics

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.training.loop.hooks import StepReport
from neobert.training.loop.signals import StopRequested
from neobert.training.loop.task import Task
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

CODE = "DGR001"
RECOMPILES, FALLBACKS, READ_RETRIES = "recompiles", "kernel_fallbacks", "read_retries"
COUNTERS = (RECOMPILES, FALLBACKS, READ_RETRIES)
# A retried read costs a pause and no speed afterwards, and DAT010 ends a run whose reads keep failing.
ENDS_THE_RUN = (RECOMPILES, FALLBACKS)
# A resumed session compiles its first evaluation and its first QK-clip after warm-up: two lines of growth are
# legitimate. A third within this many lines is not; HealthWatch compares with as many.
GROWN_LINES = 3
WINDOW_LINES = 20
WARM_UP_STEPS = 3
FIRST_TIME = "first seen"


def count_fallbacks(task: Task) -> int:
    """Return the number of transformer blocks whose last attention kernel is not the chosen one."""
    return sum(ran != task.backbone.attention for ran in task.attention_used.values())


class DegradationWatch:
    """Hook for logging steps that updates the counters and warns about those that increased."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(COUNTERS, 0)
        self._has_grown = {name: deque[bool](maxlen=WINDOW_LINES) for name in COUNTERS}

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Update the counters and warn about those whose sum over all ranks increased. All ranks call it."""
        trainer.state.kernel_fallbacks += count_fallbacks(trainer.task)
        trainer.state.read_retries = trainer.task.read_retries()
        own = [trainer.state.recompiles, trainer.state.kernel_fallbacks, trainer.state.read_retries]
        totals = trainer.world.sum_over_ranks([count or 0 for count in own])
        for name, total in zip(COUNTERS, totals, strict=True):
            grown = total - self._totals[name]
            self._totals[name] = total
            self._has_grown[name].append(grown > 0)
            if grown > 0:
                trainer.state.warn(name, f"{name} grew by {grown} to {total}")

    def enforce(self, trainer: Trainer, _report: StepReport) -> None:
        """Raise `StopRequested` on all ranks if a counter keeps growing and guard.on_degradation is stop."""
        if trainer.config.guard.on_degradation == "stop" and (growing := [*self._growing_counters()]):
            trainer.state.failure = ProjectError(
                code=CODE,
                message=f"{' and '.join(growing)}, in {GROWN_LINES} of the last {WINDOW_LINES} log lines",
                hint="fix the cause given in the log, or set guard.on_degradation to warn; then resume with "
                "--resume auto",
                place=f"step {trainer.progress.step}",
                exit_code=EXIT_TRAINING_FAILED,
            )
            raise StopRequested

    def _growing_counters(self) -> Iterator[str]:
        for name in ENDS_THE_RUN:
            if sum(self._has_grown[name]) >= GROWN_LINES:
                yield f"{name} grew to {self._totals[name]}"


class Compilation(NamedTuple):
    """Name of a compiled function, and the failed torch.compile guard that caused the compilation."""

    function: str
    reason: str


class CompilationLog:
    """Reader of torch's compilation log, which keeps the last 64 compilations over all threads."""

    def __init__(self) -> None:
        self._seen: set[tuple[str | None, int | None]] = set()

    def take(self) -> list[Compilation]:
        """Return the functions compiled since the last call, in order. Does not wait for the device."""
        # A backward graph has an entry of its own, without a name.
        entries = [each for each in get_compilation_metrics() if each.co_name is not None]
        keys = [(each.compile_id, each.start_time_us) for each in entries]
        fresh = [each for each, key in zip(entries, keys, strict=True) if key not in self._seen]
        self._seen = set(keys)
        return [Compilation(str(each.co_name), _first_line(each.recompile_reason)) for each in fresh]


def _first_line(reason: str | None) -> str:
    return FIRST_TIME if not reason else " ".join(reason.splitlines()[0].split())


class CompilationWatch:
    """Hook for every step that counts compilations after warm-up and logs their reasons."""

    def __init__(self, first_step: int) -> None:
        self._settled_step = first_step + WARM_UP_STEPS
        self._log = CompilationLog()

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Add compilations after the warm-up steps to `trainer.state.recompiles`, and log them."""
        step, compiled = trainer.progress.step, self._log.take()
        late = compiled if step > self._settled_step else []
        trainer.state.recompiles = (trainer.state.recompiles or 0) + len(late)
        for each in late:
            log.warning("step %d: %s was compiled after warm-up: %s", step, each.function, each.reason)
