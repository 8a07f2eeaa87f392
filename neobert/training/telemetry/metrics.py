"""Training metrics, and the writer of metrics to metrics.jsonl, the trackers and the log."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neobert.config.corpora import corpus_names
from neobert.config.schema import DatasetConfig
from neobert.data.batches.windows import Cursor
from neobert.errors import EXIT_DO_NOT_REQUEUE, ProjectError
from neobert.metric_names import CORPUS_SHARE, PACE, SPARSE, TOKENS, TRAIN_LOSS
from neobert.optim.qk_clip import QKClip
from neobert.runfiles.attempt import require_current
from neobert.tasks.metric import Metric, show_number
from neobert.tasks.specs import reported_metrics
from neobert.trackers.background import BackgroundTracker
from neobert.training.loop.hooks import StepReport
from neobert.training.state.train_state import LastMetrics
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import JsonlWriter
from neobert.training.telemetry.memory import allocator_fields
from neobert.training.telemetry.stopwatch import Breakdown, Times

log = logging.getLogger(__name__)

# With this many targets expected, the probability of none is 2e-9 in text that can be masked.
EXPECTED_TARGETS = 20

SMOOTHED_LINES = 12
# An evaluation has its own time in its own line.
TIMED_PAUSES = ("logging", "checkpoint")


class SmoothedPace:
    """Mean step time over the last 12 lines of metrics, for the estimate of the remaining time.

    The first line of a session includes compilation and cold caches: the second line replaces it.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[float, int]] = deque(maxlen=SMOOTHED_LINES)
        self._is_warm = False

    def add(self, elapsed_s: float, num_steps: int) -> float:
        """Add the elapsed seconds and steps of a metrics line; return the mean seconds per step."""
        if len(self._lines) == 1 and not self._is_warm:
            self._lines.clear()
            self._is_warm = True
        self._lines.append((elapsed_s, num_steps))
        return sum(time_s for time_s, _ in self._lines) / sum(steps for _, steps in self._lines)


class TrainingLog:
    """Hook that computes the training metrics at logging steps. Waits for the device."""

    def __init__(self, trainer: Trainer, peak_flops: float | None) -> None:
        self._peak_flops = peak_flops
        self._breakdown = Breakdown() if trainer.config.trainer.timing_breakdown else None
        self._untargeted = 0
        self._pace = SmoothedPace()
        self._remember_totals(trainer)
        trainer.stopwatch.read()  # set-up does not count as training

    def __call__(self, trainer: Trainer, report: StepReport) -> dict[str, float | None]:
        """Return the training metrics, or an empty dict if no step was trained since the last call."""
        if report.step == self._step:
            return {}
        weight_norm = trainer.world.weight_norm(trainer.module)  # queued before the host waits for the device
        trainer.guard.check()
        self._check_targets(trainer)
        assert trainer.state.grad_norm is not None
        loss, grad_norm = trainer.progress.loss.take(), float(trainer.state.grad_norm)
        times = trainer.stopwatch.read()
        logged = dict(trainer.task.logged_metrics(trainer.world))
        trainer.state.last_metrics = self._last_metrics(trainer, times, loss, grad_norm, logged)
        self._remember_totals(trainer)
        return (
            metric_fields(trainer, float(weight_norm))
            | logged
            | self._step_times(times, trainer.state.last_metrics)
            | allocator_fields(trainer.world.device)
        )

    def _remember_totals(self, trainer: Trainer) -> None:
        self._step, self._flops = trainer.progress.step, trainer.state.flops
        self._tokens = trainer.progress.tokens_total

    def _check_targets(self, trainer: Trainer) -> None:
        """Raise `ProjectError` DAT004 if no token was a target where more than 20 targets were expected."""
        progress = trainer.progress
        tokens = progress.tokens_total - self._tokens
        self._untargeted = 0 if progress.loss.num_targets else self._untargeted + tokens
        if self._untargeted * trainer.task.targets_per_token > EXPECTED_TARGETS:
            raise ProjectError(
                "DAT004",
                f"no target in the last {self._untargeted:,} tokens: none of them can be masked",
                "check the text for special and unknown tokens: neobert-launch data prepare counts both",
                "dataset",
                EXIT_DO_NOT_REQUEUE,
            )

    def _last_metrics(
        self, trainer: Trainer, times: Times, loss: float, grad_norm: float, logged: Mapping[str, float]
    ) -> LastMetrics:
        sparse = {
            name.removeprefix(SPARSE): value for name, value in logged.items() if name.startswith(SPARSE)
        }
        waits_ms = [step.get("data_wait", 0.0) for step in times.steps]
        median_ms, high_ms = np.percentile(waits_ms, (50, 95)).tolist()
        flops_per_s = (trainer.state.flops - self._flops) / times.elapsed_s
        num_steps = trainer.progress.step - self._step
        return LastMetrics(
            loss=loss if math.isfinite(loss) else None,
            learning_rate=trainer.state.learning_rate,
            grad_norm=grad_norm,
            tokens_per_second=(trainer.progress.tokens_total - self._tokens) / times.elapsed_s,
            mfu=None if self._peak_flops is None else flops_per_s / self._peak_flops,
            data_wait_ms=times.mean_ms("data_wait"),
            data_wait_p50_ms=median_ms,
            data_wait_p95_ms=high_ms,
            step_time_s=times.elapsed_s / num_steps,
            smoothed_step_time_s=self._pace.add(times.elapsed_s, num_steps),
            nsa=sparse or None,
        )

    def _step_times(self, times: Times, reading: LastMetrics) -> dict[str, float | None]:
        """Return the step time in milliseconds and, with trainer.timing_breakdown, the time of each part."""
        assert reading.step_time_s is not None
        assert reading.data_wait_ms is not None
        step_ms = reading.step_time_s * 1000
        times_ms: dict[str, float | None] = {
            "perf/data_wait_share": reading.data_wait_ms / step_ms,
            "perf/host_bound_share": times.host_bound_share,
            "time/step_ms": step_ms,
            "time/data_wait_ms": reading.data_wait_ms,
        }
        if self._breakdown is None:
            return times_ms
        times_ms |= self._breakdown.fields(times.steps)
        for name in TIMED_PAUSES:
            times_ms[f"time/{name}_ms"] = times.pauses_ms.get(name, 0.0)
            times_ms |= self._breakdown.spread(name, [pauses.get(name, 0.0) for pauses in times.pauses])
        return times_ms


def metric_fields(trainer: Trainer, weight_norm: float) -> dict[str, float | None]:
    """Return the training metrics under their names in metrics.jsonl; a value is None if it is unknown."""
    reading, progress = trainer.state.last_metrics, trainer.progress
    return {
        TRAIN_LOSS: reading.loss,
        "train/learning_rate": reading.learning_rate,
        "train/grad_norm": reading.grad_norm,
        "train/weight_norm": weight_norm if math.isfinite(weight_norm) else None,
        PACE: reading.tokens_per_second,
        TOKENS: progress.tokens_total,
        "train/epoch": trainer.task.epoch(progress),
        "perf/mfu": reading.mfu,
        "perf/recompiles": trainer.state.recompiles,
        "perf/kernel_fallbacks": trainer.state.kernel_fallbacks,
        "data/read_retries": trainer.state.read_retries,
        **_clip_fields(trainer.qk_clip),
        **_corpus_fields(trainer.config.dataset, progress.cursor),
    }


def _clip_fields(clip: QKClip | None) -> dict[str, float | None]:
    """Return the largest attention logit before the last QK-clip, None if it is not finite.

    Empty without QK-clip.
    """
    if clip is None:
        return {}
    highest = math.nan if clip.highest is None else clip.highest.max().item()
    return {"train/max_attention_logit": highest if math.isfinite(highest) else None}


def _corpus_fields(dataset: DatasetConfig, cursor: Cursor) -> dict[str, float]:
    """Return each corpus's share of the tokens trained on so far; an empty dict if there is no mixture."""
    drawn = cursor.corpus_tokens
    if drawn is None:
        return {}
    return {
        f"{CORPUS_SHARE}{name}": tokens / max(1, sum(drawn))
        for name, tokens in zip(corpus_names(dataset), drawn, strict=True)
    }


class MetricsWriter:
    """Hook that writes a step's metrics, if there are any, to metrics.jsonl, the trackers and the log."""

    def __init__(self, writer: JsonlWriter | None, trackers: Sequence[BackgroundTracker]) -> None:
        self._writer = writer
        self._trackers = trackers

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Write the step's metrics, also to trackers, on rank 0; mark them as written on all ranks.

        Raises `ProjectError` TRN004 if a later launch has taken over the run.
        """
        row, trainer.progress.row = report.metrics, None
        if len(row) == 1:
            return
        log.info("%s", format_metrics(row, trainer.max_steps, reported_metrics(trainer.config)))
        if self._writer is not None:
            require_current(trainer.run_dir)
            self._writer.append(row)
        for tracker in self._trackers:
            tracker.log(row)
            if problem := tracker.take_problem():
                trainer.state.warn(f"tracker_{tracker.name}", problem)

    def sync(self) -> None:
        """Sync metrics.jsonl to disk, so that no checkpoint is newer than the metrics on disk.

        Does nothing on ranks that write no metrics.
        """
        if self._writer is not None:
            self._writer.sync()


def format_metrics(row: Mapping[str, Any], max_steps: int, metrics: Sequence[Metric]) -> str:
    """Format a step's metrics as a line for the log."""
    parts = [f"step {row['step']}/{max_steps}"]
    if TRAIN_LOSS in row:
        parts.append(
            "no target to predict" if row[TRAIN_LOSS] is None else f"loss {show_number(row[TRAIN_LOSS])}"
        )
        parts.append(f"lr {row['train/learning_rate']:.2e}")
        parts.append(f"grad norm {row['train/grad_norm']:.3f}")
        parts.append(f"{row[PACE]:,.0f} tokens/s")
    if any(metric.name in row for metric in metrics):
        parts.append(f"eval {_describe_evaluation(row, metrics)}")
    return "  ".join(parts)


def _describe_evaluation(row: Mapping[str, Any], metrics: Sequence[Metric]) -> str:
    values = {metric: row.get(metric.name) for metric in metrics}
    if all(value is None for value in values.values()):
        return "has no target to predict"
    named = (
        f"no finite {metric.label}" if value is None else metric.describe(value)
        for metric, value in values.items()
    )
    return ", ".join(named)
