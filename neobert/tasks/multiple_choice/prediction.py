"""Predictions of a model for multiple choice: the index of the best choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neobert.encoding.packed_rows import PackedRow
from neobert.errors import ProjectError
from neobert.prediction.class_scores import share
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import Prediction
from neobert.prediction.predictor import HeadPredictor, Scorer
from neobert.printable import printable
from neobert.progress import OnProgress
from neobert.tasks.multiple_choice.examples import prompt_choice_pairs
from neobert.tasks.multiple_choice.labels import CHOICES, CODE, LABEL, choice_index, row_choices
from neobert.tasks.multiple_choice.rows import choice_names
from neobert.tasks.multiple_choice.spec import SPEC


class ChoicePredictor(HeadPredictor):
    """Predicts the index of the best choice, its probability, and the probabilities of all."""

    auto_class = SPEC.auto_class

    @classmethod
    def scorer(cls, classes: Sequence[str], names: Sequence[str]) -> Scorer:  # noqa: ARG003
        """Return an empty scorer of accuracy."""
        return ChoiceScorer(names)

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        pairs = [prompt_choice_pairs(*_parse_item(item, self.names)) for item in items]
        sequences, seconds, counts = self.tokenizer.tokenize_items(
            [pair for found in pairs for pair in found]
        )
        counts.texts = len(items)
        self.counts.add(counts)
        scores = torch.empty(len(sequences), dtype=torch.float64)

        def compute(packed: PackedRow, indices: list[int]) -> Tensor:
            return self.model.logits(packed, self.second_text_starts(seconds, indices))[: len(indices), 0]

        for indices, values in self._compute_in_runs(sequences, compute, on_progress):
            scores[indices] = values.double()
        return [_best_choice(each) for each in scores.split([len(found) for found in pairs])]


class ChoiceScorer:
    """Scorer of predicted choices, over the rows with a label; `names` are the rows' text fields."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._rows, self._right = 0, 0

    def add(self, item: Item, label: str, prediction: Prediction, location: str) -> None:
        """Count a row. Raises DAT020 for a label that names no choice of the row."""
        row, choices = _parse_item(item, self._names)
        right = choice_index({**row, LABEL: label}, len(choices))
        if right is None:
            message = f"label {printable(label)!r} names none of the {len(choices)} choices"
            raise ProjectError(CODE, message, "correct the label, or remove the row", location)
        self._rows += 1
        self._right += prediction[SPEC.predicted[0]] == right

    def report(self) -> dict[str, Any]:
        """Return number of labelled rows and accuracy, or an empty dict if no row has a label."""
        return {"labelled": self._rows, "accuracy": share(self._right, self._rows)} if self._rows else {}


def _parse_item(item: Item, names: Sequence[str]) -> tuple[Mapping[str, str], list[str]]:
    row = dict(zip(names, item, strict=True))
    return row, row_choices(row, (CHOICES,) if CHOICES in names else choice_names(names))


def _best_choice(scores: Tensor) -> Prediction:
    """Return best choice, its probability, and all probabilities; the first two are None without choices."""
    shares = scores.softmax(0)
    best = int(shares.argmax()) if len(shares) else None
    share = None if best is None else float(shares[best])
    return dict(zip(SPEC.predicted, (best, share, shares.tolist()), strict=True))


PREDICTOR = ChoicePredictor
