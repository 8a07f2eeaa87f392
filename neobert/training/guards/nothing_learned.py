"""Warning that the last evaluation of a run does not beat guessing."""

from __future__ import annotations

import math

from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

NOTHING_LEARNED = "nothing_learned"
PROBLEMS = {
    "eval/mcc": "every text is predicted as the same class",
    "eval/recall": "no labelled word is found",  # accuracy is the share of words without a label
}
"""Meaning of a metric that is exactly 0, by its name."""
CORRELATIONS = ("eval/mcc", "eval/spearman")
WAY = "train longer (trainer.max_steps), raise optimizer.lr, or check the labels"


def warn_if_nothing_learned(trainer: Trainer, report: StepReport) -> None:
    """Warn if the last evaluation has a metric of `PROBLEMS` that is 0, or a correlation that guesses reach.

    Accuracy does not show that one class is predicted throughout: it is high for a frequent class.
    """
    if report.step < trainer.max_steps:
        return
    for metric, problem in PROBLEMS.items():
        if report.metrics.get(metric) == 0.0:
            trainer.state.warn(NOTHING_LEARNED, f"{metric} is 0: {problem}; {WAY}")
            return
    texts = trainer.task.num_evaluated
    for metric in CORRELATIONS:
        value, guessed = report.metrics.get(metric), guess_correlation(texts, trainer.task.num_classes)
        if value is not None and value < guessed:
            shown = f"{metric} is {value:.2f}, and random guesses reach {guessed:.2f} on {texts} texts"
            way = f"{WAY}, or evaluate on more texts"
            trainer.state.warn(NOTHING_LEARNED, f"{shown}: no sign of learning; {way}")


def guess_correlation(num_texts: int, num_classes: int) -> float:
    """Return the correlation with `num_texts` labels that random guesses exceed in 1 of 40 evaluations.

    It is two standard deviations of a normal approximation, 1 / sqrt(num_texts * (num_classes - 1)) each.
    """
    return 2 / math.sqrt(max(1, num_texts) * max(1, num_classes - 1))
