"""Predictions of a classifier or a regression model of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neobert.encoding.runs import Run
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import PREDICTION, PROBABILITY, Prediction
from neobert.prediction.predictor import HeadPredictor
from neobert.progress import OnProgress
from neobert.tasks.classification.spec import SPEC


class TextPredictor(HeadPredictor):
    """Predicts the class and its probability, or the score, of each text or pair."""

    auto_class = SPEC.auto_class

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in their order; empty for scores."""
        return () if self.model.is_score else self.model.labels

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        sequences, seconds, counts = self.tokenizer.tokenize_items(items)
        self.counts.add(counts)
        logits = torch.empty(len(items), len(self.model.labels))

        def compute(run: Run, places: list[int]) -> Tensor:
            return self.model.logits(run, self.seconds_of(seconds, places))[: len(places)]

        for places, outputs in self._in_runs(sequences, compute, on_progress):
            logits[places] = outputs
        return self._scores(logits) if self.model.is_score else self._classes(logits)

    def _scores(self, logits: Tensor) -> list[Prediction]:
        return [{PREDICTION: score} for score in logits[:, 0].tolist()]

    def _classes(self, logits: Tensor) -> list[Prediction]:
        probabilities = logits.double().softmax(-1).numpy()
        labels = self.model.labels
        columns = [f"{PROBABILITY}_{label}" for label in labels] if self.every_class else []
        best = probabilities.argmax(-1)
        return [
            {PREDICTION: labels[index], PROBABILITY: float(row[index])}
            | dict(zip(columns, map(float, row), strict=False))
            for index, row in zip(best, np.asarray(probabilities), strict=True)
        ]


PREDICTOR = TextPredictor
