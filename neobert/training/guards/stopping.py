"""Early ends of a run: a moved, deleted or replaced directory, a `.HALT` file in it, early stopping."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.plurals import counted
from neobert.runfiles.attempt import require_current
from neobert.runfiles.run_dir import (
    HALT,
    METRICS,
    is_still_at_path,
    missing_run_dir_error,
)
from neobert.tasks.specs import is_higher_better
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import read_rows

log = logging.getLogger(__name__)


class DirectoryWatch:
    """Detection of a moved or deleted run directory on rank 0, after each step and before each save."""

    def __init__(self, run_dir: Path, descriptor: int) -> None:
        self._run_dir, self._descriptor = run_dir, descriptor

    def __call__(self, trainer: Trainer, _report: StepReport) -> None:
        """Run `check` as a hook."""
        self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        """Request a stop if the directory has a `.HALT` file.

        Raises `ProjectError` TRN002 if the directory was moved or deleted, TRN004 if a later launch has taken
        it over.
        """
        if not trainer.world.is_main:
            return
        if not is_still_at_path(self._run_dir, self._descriptor):
            raise missing_run_dir_error(self._run_dir, trainer.progress.step)
        require_current(self._run_dir)
        if trainer.signals.requested is None and (self._run_dir / HALT).exists():
            log.info("%s found: stopping", self._run_dir / HALT)
            trainer.signals.request(signal.SIGINT)


def consume_halt(run_dir: Path) -> None:
    """Remove the `.HALT` file that stopped the session, so that the next launch trains again."""
    try:
        (run_dir / HALT).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s stopped the run, but could not be removed: %s", run_dir / HALT, error)


@contextmanager
def watch_directory(run_dir: Path) -> Iterator[DirectoryWatch]:
    """Keep the run directory open inside the `with` block, to notice when it is moved."""
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield DirectoryWatch(run_dir, descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class EarlyStopping:
    """Early-stopping hook that counts evaluations without improvement, on all ranks.

    Its state is rebuilt from metrics.jsonl, so a resumed run stops at the same step as an uninterrupted run.

    Attributes:
        metric: name of the metric in metrics.jsonl.
        patience: evaluations without improvement after which the run ends.
        sign: 1 if a higher metric is better, else -1.
        best: best value so far times `sign`; minus infinity before the first evaluation.
        num_worse: evaluations since the best.
    """

    metric: str
    patience: int
    sign: int
    best: float = float("-inf")
    num_worse: int = 0

    def count_evaluation(self, value: float | None) -> None:
        """Count an evaluation, unless the metric has no value: it is then neither better nor worse."""
        if value is None:
            return
        judged = self.sign * value
        # Equal is not better, as in transformers and Keras; the loss only decides which checkpoint is best.
        self.num_worse = 0 if judged > self.best else self.num_worse + 1
        self.best = max(self.best, judged)

    def __call__(self, trainer: Trainer, report: StepReport) -> None:
        """Count this step's evaluation, if there is one, and end the run if patience has run out."""
        if self.metric in report.metrics:
            self.count_evaluation(report.metrics[self.metric])
            self.end_if_due(trainer)

    def end_if_due(self, trainer: Trainer) -> None:
        """Set `max_steps` to the current step if patience has run out."""
        step = trainer.progress.step
        if self.num_worse >= self.patience and step < trainer.max_steps:
            message = "step %d: %s has not improved in %s: stopping early"
            log.info(message, step, self.metric, counted(self.num_worse, "evaluation"))
            trainer.max_steps = step


def build_early_stopping(config: RunConfig, run_dir: Path, first_step: int) -> EarlyStopping | None:
    """Build early stopping with its state from metrics.jsonl; None if it is not configured.

    `first_step` is the step at which the run begins.
    """
    patience, metric = config.trainer.early_stopping_patience, config.trainer.metric_for_best_model
    if patience is None or metric is None:
        return None
    stopping = EarlyStopping(metric, patience, 1 if is_higher_better(config.trainer, metric) else -1)
    path = run_dir / METRICS
    for row in read_rows(path) if path.exists() else ():
        # As in an uninterrupted run: the evaluation before training is not compared.
        if row["step"] > first_step and stopping.metric in row:
            stopping.count_evaluation(row[stopping.metric])
    return stopping
