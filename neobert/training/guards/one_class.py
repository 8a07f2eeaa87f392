"""Warning that a classifier predicts one class for every text, or for every word."""

from __future__ import annotations

from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

ONE_CLASS = "one_class"
PROBLEMS = {
    "eval/mcc": "every text is predicted as the same class",
    "eval/recall": "no labelled word is found",  # accuracy is the share of words without a label
}
"""Meaning of a metric that is exactly 0, by its name."""
WAY = "train longer (trainer.max_steps), raise optimizer.lr, or check the labels"


def warn_of_one_class(trainer: Trainer, report: StepReport) -> None:
    """Warn if the last evaluation of the run has a metric of `PROBLEMS` that is exactly 0.

    Accuracy does not show that one class is predicted throughout: that of a frequent class is high.
    """
    for metric, problem in PROBLEMS.items():
        if report.metrics.get(metric) == 0.0 and report.step >= trainer.max_steps:
            trainer.state.warn(ONE_CLASS, f"{metric} is 0: {problem}; {WAY}")
