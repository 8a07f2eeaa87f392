"""Accuracy, F1 and MCC, or correlations, from the predictions of a whole split."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.objectives.labelled import Predictions
from neobert.parallel import World
from neobert.tasks.correlation import Floats, correlation_metrics
from neobert.training.loop.task import Batch

Classes = NDArray[np.int64]


class PredictionMetrics:
    """Loss and predictions of an evaluation; each prediction is stored as two numbers (predicted, label)."""

    def __init__(self, device: torch.device) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._kept: list[Floats] = [np.empty((0, 2))]
        self._is_regression, self._num_classes = False, 0

    def add(self, score: Predictions, batch: Batch) -> None:  # noqa: ARG002  (slots without a text are in the labels)
        """Add a microbatch: the predicted class or score of each labelled text, and its label."""
        self._is_regression, self._num_classes = score.labels.is_floating_point(), score.logits.shape[-1]
        is_text = ~score.labels.isnan() if self._is_regression else score.labels >= 0
        predicted = score.logits.squeeze(-1) if self._is_regression else score.logits.argmax(-1)
        pairs = torch.stack([predicted.double(), score.labels.double()], dim=1)
        self._kept.append(pairs[is_text].cpu().numpy())
        self._loss_sum += score.loss_sum

    def values(self, world: World) -> dict[str, float | None]:
        """Return loss and metrics of classes or scores over all ranks; each is None without labels."""
        loss_sum = float(world.all_reduce_sum(self._loss_sum))
        gathered = world.gather(np.concatenate(self._kept).tobytes())

        def compute() -> dict[str, float | None]:
            pairs = np.concatenate([np.frombuffer(each).reshape(-1, 2) for each in gathered])
            loss = loss_sum / len(pairs) if len(pairs) else None
            predicted, labels = pairs[:, 0], pairs[:, 1]
            found = (
                correlation_metrics(predicted, labels)
                if self._is_regression
                else classification_metrics(predicted, labels, self._num_classes)
            )
            return {"eval/loss": loss, **found}

        return world.on_main(compute)


def classification_metrics(predicted: Floats, labels: Floats, num_classes: int) -> dict[str, float | None]:
    """Return accuracy, F1 and MCC of predicted classes by metric name; each is None without labels."""
    guessed, true = predicted.astype(np.int64), labels.astype(np.int64)
    return {
        "eval/accuracy": float((guessed == true).mean()) if len(true) else None,
        "eval/f1": f1(guessed, true, num_classes),
        "eval/mcc": matthews(guessed, true),
    }


def f1(guessed: Classes, true: Classes, num_classes: int) -> float | None:
    """Return F1 of class 1 if there are two classes, else the macro average; None if there are no labels.

    As in scikit-learn, the average is over the classes that are predicted or present, and F1 of class 1 is 0
    if it is neither.
    """
    if not len(true):
        return None
    # By the number of classes, not by those present: the definition must not change between evaluations.
    classes = np.array([1]) if num_classes <= 2 else np.union1d(guessed, true)
    return float(np.mean([_binary_f1(guessed == each, true == each) for each in classes]))


def _binary_f1(guessed: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    total = int(guessed.sum() + true.sum())
    return 2 * int((guessed & true).sum()) / total if total else 0.0


def matthews(guessed: Classes, true: Classes) -> float | None:
    """Return the Matthews correlation of any number of classes (Gorodkin, 2004).

    The value is 0 if all predictions are the same, and None if all labels are.
    """
    classes = np.union1d(guessed, true)
    counts = np.array([[(guessed == each).sum(), (true == each).sum()] for each in classes], dtype=float)
    if not len(true) or len(np.unique(true)) == 1:
        return None
    size, right = len(true), float((guessed == true).sum())
    covariance = right * size - counts[:, 0] @ counts[:, 1]
    spread = (size**2 - (counts[:, 0] ** 2).sum()) * (size**2 - (counts[:, 1] ** 2).sum())
    return float(covariance / np.sqrt(spread)) if spread else 0.0
