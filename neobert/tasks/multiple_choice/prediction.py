"""Predictions of a model for multiple choice: the index of the best choice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neobert.encoding.runs import Run
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import Prediction
from neobert.prediction.predictor import HeadPredictor
from neobert.progress import OnProgress
from neobert.tasks.multiple_choice.examples import pairs_of
from neobert.tasks.multiple_choice.labels import CHOICES, choices_of
from neobert.tasks.multiple_choice.rows import choice_names
from neobert.tasks.multiple_choice.spec import SPEC


class ChoicePredictor(HeadPredictor):
    """Predicts the index of the best choice, its probability, and the probabilities of all."""

    auto_class = SPEC.auto_class

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        rows = [dict(zip(self.names, item, strict=True)) for item in items]
        fields = (CHOICES,) if CHOICES in self.names else choice_names(self.names)
        pairs = [pairs_of(row, choices_of(row, fields)) for row in rows]
        sequences, seconds, counts = self.tokenizer.tokenize_items(
            [pair for found in pairs for pair in found]
        )
        counts.texts = len(items)
        self.counts.add(counts)
        scores = torch.empty(len(sequences), dtype=torch.float64)

        def compute(run: Run, places: list[int]) -> Tensor:
            return self.model.logits(run, self.seconds_of(seconds, places))[: len(places), 0]

        for places, values in self._in_runs(sequences, compute, on_progress):
            scores[places] = values.double()
        return [_prediction(each) for each in scores.split([len(found) for found in pairs])]


def _prediction(scores: Tensor) -> Prediction:
    """Return the best of the scores of a row; a row without choices has none."""
    shares = scores.softmax(0)
    best = int(shares.argmax()) if len(shares) else None
    share = None if best is None else float(shares[best])
    return dict(zip(SPEC.predicted, (best, share, shares.tolist()), strict=True))


PREDICTOR = ChoicePredictor
