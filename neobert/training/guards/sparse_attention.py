"""Guard of native sparse attention: blocks that were not read, dead gates and collapsed gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neobert.errors import EXIT_DO_NOT_REQUEUE, EXIT_TRAINING_FAILED, ProjectError
from neobert.metric_names import SPARSE
from neobert.training.loop.hooks import StepReport
from neobert.training.loop.signals import StopRequested
from neobert.training.state.trainer import Trainer

DEAD_GATE, COLLAPSE = "dead_gate", "gate_collapse"
DEAD_CODE, READS_CODE = "DGR002", "NSA101"
MAX_DEAD_SHARE = 0.25
"""Maximum share of layers with a dead gate; the first layers of a sound model may not need each branch."""
WARNED_LINES, LAST_LINES = 3, 10
LEAST_ENTROPY, LARGEST_GATE = 0.5, 0.9
SETTLED_STEP = 200


class SparseAttentionWatch:
    """Hook for logging steps that warns about gates, and ends a run that reads the wrong blocks.

    Dead gates get no gradient: they end a run after 10 lines in a row, if guard.on_degradation is stop.
    """

    def __init__(self) -> None:
        self._dead_lines = 0
        self._is_collapsed = False

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Log a warning for each problem in the step's metrics."""
        for name, message in self.judge(report.step, report.metrics):
            trainer.state.warn(name, message)

    def judge(self, step: int, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield name and message of each warning about a line of metrics."""
        dead = metrics.get(f"{SPARSE}dead_layers")
        if dead is None:
            return
        self._dead_lines = self._dead_lines + 1 if dead > MAX_DEAD_SHARE else 0
        if self._dead_lines == WARNED_LINES:
            yield DEAD_GATE, f"{self._dead_gates_message(dead)} (limit {MAX_DEAD_SHARE:.0%})"
        entropy, largest = (metrics[f"{SPARSE}{name}"] for name in ("gate_entropy_mean", "max_gate_mean"))
        is_collapsed = step > SETTLED_STEP and (entropy < LEAST_ENTROPY or largest > LARGEST_GATE)
        if is_collapsed and not self._is_collapsed:
            message = (
                f"the mean gate entropy is {entropy:.2f} (at least {LEAST_ENTROPY:g}), and the mean share "
            )
            yield COLLAPSE, f"{message}of the largest gate is {largest:.2f} (at most {LARGEST_GATE:g})"
        self._is_collapsed = is_collapsed

    def _dead_gates_message(self, share: float) -> str:
        return f"a gate is closed or saturated in {share:.0%} of the layers, for {self._dead_lines} log lines"

    def enforce(self, trainer: Trainer, report: StepReport) -> None:
        """Raise `StopRequested` on all ranks for dead gates, and for blocks that were not read."""
        trainer.state.failure = self.failure(report, stops=trainer.config.guard.on_degradation == "stop")
        if trainer.state.failure is not None:
            raise StopRequested

    def failure(self, report: StepReport, *, stops: bool) -> ProjectError | None:
        """Return the error for wrongly selected blocks or, if `stops`, for dead gates; else None."""
        expected, actual = (
            report.metrics.get(f"{SPARSE}{name}") for name in ("reads_pred", "reads_act_total")
        )
        if expected != actual:
            message = f"{actual:,.0f} blocks were selected, but these documents require {expected:,.0f}"
            hint = "report a bug with the versions of flash-linear-attention and triton"
            return ProjectError(READS_CODE, message, hint, f"step {report.step}", EXIT_DO_NOT_REQUEUE)
        if not stops or self._dead_lines < LAST_LINES:
            return None
        message = self._dead_gates_message(report.metrics[f"{SPARSE}dead_layers"])
        hint = "dead gates get no gradient: resume from an earlier checkpoint (--resume PATH) with a lower "
        hint += "optimizer.lr, or set guard.on_degradation to warn"
        return ProjectError(DEAD_CODE, message, hint, f"step {report.step}", EXIT_TRAINING_FAILED)
