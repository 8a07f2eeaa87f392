"""Counters that stay flat in a healthy run: recompiles, kernel fallbacks, read retries.

Growth is logged and counted in the heartbeat's `warnings`. Recompiles and fallbacks that keep growing end the
run with a checkpoint: the weights are good, but every further step is slower than the one that was checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.training.guards.warnings import warn
from neobert.training.loop.hooks import StepReport
from neobert.training.loop.signals import StopRequested
from neobert.training.loop.task import Task
from neobert.training.state.trainer import Trainer

CODE = "DGR001"
RECOMPILES, FALLBACKS, READ_RETRIES = "recompiles", "kernel_fallbacks", "read_retries"
COUNTERS = (RECOMPILES, FALLBACKS, READ_RETRIES)
# A retried read costs a pause and no speed afterwards, and DAT010 ends a run whose reads keep failing.
ENDS_THE_RUN = (RECOMPILES, FALLBACKS)
# A resumed session compiles its first evaluation and its first QK-clip after warm-up: two lines of growth are
# legitimate. A third within this many lines is not; HealthWatch compares with as many.
GROWN_LINES = 3
WINDOW_LINES = 20


def count_fallbacks(task: Task) -> int:
    """Return how many blocks last ran another attention kernel than the one resolved for the run."""
    return sum(ran != task.attention_kernel for ran in task.attention_ran.values())


class DegradationWatch:
    """A hook for logging steps, on all ranks: updates the counters, and warns of those that grew."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(COUNTERS, 0)
        self._has_grown = {name: deque[bool](maxlen=WINDOW_LINES) for name in COUNTERS}

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Update this rank's counters, and warn of those that grew, added up over the ranks."""
        trainer.state.kernel_fallbacks += count_fallbacks(trainer.task)
        trainer.state.read_retries = trainer.task.read_retries()
        own = [trainer.state.recompiles, trainer.state.kernel_fallbacks, trainer.state.read_retries]
        totals = trainer.world.sum_over_ranks([count or 0 for count in own])
        for name, total in zip(COUNTERS, totals, strict=True):
            grown = total - self._totals[name]
            self._totals[name] = total
            self._has_grown[name].append(grown > 0)
            if grown > 0:
                warn(trainer, name, f"{name} grew by {grown} to {total}")

    def enforce(self, trainer: Trainer, _report: StepReport) -> None:
        """Raise `StopRequested` on all ranks where a counter keeps growing. A hook of the last stage."""
        if trainer.config.guard.on_degradation == "stop" and (growing := [*self._growing()]):
            trainer.state.failure = _error(trainer.progress.step, growing)
            raise StopRequested

    def _growing(self) -> Iterator[str]:
        for name in ENDS_THE_RUN:
            if sum(self._has_grown[name]) >= GROWN_LINES:
                yield f"{name} grew to {self._totals[name]}"


def _error(step: int, growing: list[str]) -> ProjectError:
    return ProjectError(
        code=CODE,
        message=f"{' and '.join(growing)}, in {GROWN_LINES} of the last {WINDOW_LINES} logging lines",
        hint="the log names each cause; this step is saved: fix the cause and resume, or set "
        "guard.on_degradation to warn",
        place=f"step {step}",
        exit_code=EXIT_TRAINING_FAILED,
    )
