"""Warning that a classifier predicts one class for every text."""

from __future__ import annotations

from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

ONE_CLASS = "one_class"
MCC = "eval/mcc"
WAY = "train longer (trainer.max_steps), raise optimizer.lr, or check the labels"


def warn_of_one_class(trainer: Trainer, report: StepReport) -> None:
    """Warn if the last evaluation of the run has a Matthews correlation of exactly 0.

    Accuracy does not show that one class is predicted throughout: that of a frequent class is high.
    """
    if report.metrics.get(MCC) == 0.0 and report.step >= trainer.max_steps:
        trainer.state.warn(ONE_CLASS, f"{MCC} is 0: every text is predicted as the same class; {WAY}")
