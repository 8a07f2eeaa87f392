"""Predictions of a classifier or a regression model of texts and pairs of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.encoding.packed_rows import PackedRow
from neobert.prediction.class_scores import DECIMALS, class_scores
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import PREDICTION, PROBABILITY, Prediction
from neobert.prediction.predictor import HeadPredictor, Scorer
from neobert.progress import OnProgress
from neobert.tasks.classification.spec import SPEC
from neobert.tasks.correlation import correlation_metrics


class TextPredictor(HeadPredictor):
    """Predicts the class and its probability, or the score, of each text or pair."""

    auto_class = SPEC.auto_class

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in their order; empty for scores."""
        return () if self.model.is_regression else self.model.labels

    @classmethod
    def scorer(cls, classes: Sequence[str], names: Sequence[str]) -> Scorer:  # noqa: ARG003
        """Return an empty scorer of classes, or of scores if there are no classes."""
        return ClassScorer(classes) if classes else RegressionScorer()

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        sequences, seconds, counts = self.tokenizer.tokenize_items(items)
        self.counts.add(counts)
        logits = torch.empty(len(items), len(self.model.labels))

        def compute(packed: PackedRow, indices: list[int]) -> Tensor:
            return self.model.logits(packed, self.second_text_starts(seconds, indices))[: len(indices)]

        for indices, outputs in self._compute_in_runs(sequences, compute, on_progress):
            logits[indices] = outputs
        return (
            self._score_predictions(logits) if self.model.is_regression else self._class_predictions(logits)
        )

    def _score_predictions(self, logits: Tensor) -> list[Prediction]:
        return [{PREDICTION: score} for score in logits[:, 0].tolist()]

    def _class_predictions(self, logits: Tensor) -> list[Prediction]:
        probabilities = logits.double().softmax(-1).numpy()
        labels = self.model.labels
        columns = [f"{PROBABILITY}_{label}" for label in labels] if self.every_class else []
        best = probabilities.argmax(-1)
        return [
            {PREDICTION: labels[index], PROBABILITY: float(row[index])}
            | dict(zip(columns, map(float, row), strict=False))
            for index, row in zip(best, np.asarray(probabilities), strict=True)
        ]


def has_text(item: Item) -> bool:
    """Return whether a text of the row is not blank; evaluations of a run leave out other rows."""
    return any(map(str.strip, item))


class ClassScorer:
    """Scorer of predicted classes, over the texts with a label."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        self._pairs = Counter[tuple[str, str]]()

    def add(self, item: Item, label: int | None, prediction: Prediction, _location: str) -> None:
        """Count a text, unless it is empty or has no label."""
        if label is not None and has_text(item):
            self._pairs[self._classes[label], prediction[PREDICTION]] += 1

    def report(self) -> dict[str, Any]:
        """Return accuracy and scores by class, or an empty dict if no text has a label."""
        return class_scores(self._pairs.elements(), self._classes) if self._pairs else {}


class RegressionScorer:
    """Scorer of predicted scores, over the texts with a score."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []

    def add(self, item: Item, label: float | None, prediction: Prediction, _location: str) -> None:
        """Keep the predicted and the true score of a text, unless it is empty or has no score."""
        if label is not None and has_text(item):
            self._pairs.append((prediction[PREDICTION], label))

    def report(self) -> dict[str, Any]:
        """Return the number of scores, root mean squared error and correlations; empty without scores.

        The error is in the unit of the scores; its square is the loss of an evaluation.
        """
        if not self._pairs:
            return {}
        predicted, true = np.array(self._pairs).T
        error = float(np.sqrt(np.mean((predicted - true) ** 2)))
        found = correlation_metrics(predicted, true)
        scores = {name.removeprefix("eval/"): value for name, value in found.items()}
        rounded = {name: None if each is None else round(each, DECIMALS) for name, each in scores.items()}
        return {"labelled": len(self._pairs), "rmse": float(f"{error:.{DECIMALS}g}"), **rounded}


PREDICTOR = TextPredictor
