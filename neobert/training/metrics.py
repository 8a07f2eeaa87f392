"""`metrics.jsonl`: one line a logging step, and whatever was evaluated at the same step in the same line."""

from __future__ import annotations

import logging

from neobert.training.journal import Journal
from neobert.training.tracker import Tracker
from neobert.training.trainer import Reading, Trainer

log = logging.getLogger(__name__)

SECTIONS = ("data_wait", "forward_backward", "optimizer")
LOSS = "train/loss"


class TrainingLog:
    """Reads the meters at a logging step. This is where the host waits for the device."""

    def __init__(self, trainer: Trainer, peak_flops: float | None) -> None:
        self._peak_flops = peak_flops
        self._read_step = trainer.progress.step
        self._read_tokens = trainer.progress.tokens_total
        trainer.stopwatch.read()  # setting up is no training

    def __call__(self, trainer: Trainer) -> None:
        """Add the training fields to the step's line, unless it was an earlier session that trained it."""
        progress, row = trainer.progress, trainer.progress.row
        if row is None or progress.step == self._read_step:
            return
        trainer.guard.check()
        reading, sections_ms = self._read(trainer)
        trainer.reading = reading
        row |= {
            LOSS: reading.loss,
            "train/learning_rate": reading.learning_rate,
            "train/grad_norm": reading.grad_norm,
            "train/tokens_per_sec": reading.tokens_per_second,
            "train/tokens_total": progress.tokens_total,
            "train/epoch": trainer.task.epoch(progress),
            "perf/mfu": reading.mfu,
            **{f"time/{name}_ms": milliseconds for name, milliseconds in sections_ms.items()},
        }
        self._read_step, self._read_tokens = progress.step, progress.tokens_total

    def _read(self, trainer: Trainer) -> tuple[Reading, dict[str, float]]:
        """Return the readings, and the milliseconds of a step in each section."""
        progress = trainer.progress
        loss, grad_norm = progress.loss.take(), float(trainer.last_grad_norm)
        elapsed_s, totals_ms = trainer.stopwatch.read()
        steps = progress.step - self._read_step
        sections_ms = {name: totals_ms.get(name, 0.0) / steps for name in SECTIONS}
        flops, trainer.flops = trainer.flops, 0
        reading = Reading(
            loss=loss,
            learning_rate=trainer.last_learning_rate,
            grad_norm=grad_norm,
            tokens_per_second=(progress.tokens_total - self._read_tokens) / elapsed_s,
            mfu=None if self._peak_flops is None else flops / elapsed_s / self._peak_flops,
            data_wait_ms=sections_ms["data_wait"],
            step_time_s=elapsed_s / steps,
        )
        return reading, sections_ms


class MetricsLine:
    """Closes the line of a step: writes it if there is anything in it, tells the tracker and the reader."""

    def __init__(self, journal: Journal | None, tracker: Tracker | None) -> None:
        self._journal = journal
        self._tracker = tracker

    def __call__(self, trainer: Trainer) -> None:
        """Write the line on rank 0, and close it on all."""
        row, trainer.progress.row = trainer.progress.row, None
        if row is None or len(row) == 1:
            return
        log.info("%s", describe(row, trainer.max_steps))
        if self._journal is not None:
            self._journal.append(row)
        if self._tracker is not None:
            self._tracker.log(row)

    def sync(self) -> None:
        """Make the lines durable, so that a checkpoint never outlives the history that led to it."""
        if self._journal is not None:
            self._journal.sync()


def describe(row: dict[str, float], max_steps: int) -> str:
    """Put a line into words for people."""
    words = [f"step {row['step']}/{max_steps}"]
    if LOSS in row:
        words.append(f"loss {row[LOSS]:.4f}")
        words.append(f"lr {row['train/learning_rate']:.2e}")
        words.append(f"grad norm {row['train/grad_norm']:.3f}")
        words.append(f"{row['train/tokens_per_sec']:,.0f} tokens/s")
    if "eval/loss" in row:
        words.append(f"eval loss {row['eval/loss']:.4f}, accuracy {row['eval/accuracy']:.2%}")
    return "  ".join(words)
