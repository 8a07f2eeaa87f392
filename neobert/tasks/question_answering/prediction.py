"""Answers of a model to questions about contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neobert.config import ConfigError, from_dict
from neobert.encoding.counts import TextCounts
from neobert.encoding.packed_rows import PackedRow
from neobert.encoding.tokens import TextTokenizer
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.prediction.class_scores import DECIMALS
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import Prediction
from neobert.prediction.model import HeadModel
from neobert.prediction.predictor import HeadPredictor, Scorer
from neobert.progress import OnProgress
from neobert.runfiles.model_folder import CODE
from neobert.tasks.question_answering.answers import answer_scores, best_window
from neobert.tasks.question_answering.labels import Answer
from neobert.tasks.question_answering.objective import best_spans, group_by_window
from neobert.tasks.question_answering.section import QUESTION_ANSWERING, QuestionAnsweringConfig
from neobert.tasks.question_answering.spec import SETTINGS, SPEC
from neobert.tasks.question_answering.windows import ContextWindows, WindowEncoder


class AnswerPredictor(HeadPredictor):
    """Predicts the answer to each question: a span of its context, with its probability and characters.

    The probability is the first token's times the last token's, in the window with the best span.
    """

    auto_class = SPEC.auto_class

    @classmethod
    def scorer(cls, classes: Sequence[str], names: Sequence[str]) -> Scorer:  # noqa: ARG003
        """Return an empty scorer of exact match and F1."""
        return AnswerScorer()

    def __init__(self, model: HeadModel, tokenizer: TextTokenizer, folder: Path) -> None:
        super().__init__(model, tokenizer, folder)
        self.section = _saved_settings(getattr(model.settings, SETTINGS, {}), folder)
        self.windows = WindowEncoder(tokenizer.pairs, self.section.doc_stride)

    @property
    def settings(self) -> dict[str, Any]:
        """Length limit, device, kernels and limits of an answer, for reports."""
        own = asdict(self.section)
        return super().settings | {name: own[name] for name in ("max_answer_length", "null_threshold")}

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        windowed = list(self.windows.split(items))
        windows = [window for each in windowed for window in each.windows]
        sequences = [np.array(window.ids, np.int64) for window in windows]
        self.counts.add(TextCounts(texts=len(items), tokens=sum(map(len, sequences))))
        seconds = [window.first for window in windows]
        bounds = torch.tensor([(each.first, each.end) for each in windows]).reshape(-1, 2)

        def compute(packed: PackedRow, indices: list[int]) -> Tensor:
            outputs = self.model.logits(packed, self.second_text_starts(seconds, indices))
            logits = group_by_window(outputs, packed.inputs)[: len(indices)]
            first, end = bounds[indices].to(logits.device).unbind(1)
            spans = best_spans(logits, first, end, self.section.max_answer_length)
            return torch.cat([spans, logits.logsumexp(1).sum(-1, keepdim=True)], dim=1)

        found = np.empty((len(windows), 5))
        for indices, values in self._compute_in_runs(sequences, compute, on_progress):
            found[indices] = values
        parts = np.split(found, np.cumsum([len(each.windows) for each in windowed])[:-1])
        return [
            self._best_answer(context, each, rows)
            for (_, context), each, rows in zip(items, windowed, parts, strict=True)
        ]

    def _best_answer(self, context: str, found: ContextWindows, rows: NDArray[np.float64]) -> Prediction:
        """Return answer, probability and character bounds from the best window.

        `rows` [windows, 5]: `best_spans`, and the sum of the log-partitions.
        """
        if not len(rows):
            return dict(zip(SPEC.predicted, ("", None, None, None), strict=True))
        best = best_window(rows[:, :4], self.section.null_threshold)
        if best is None:
            row = rows[rows[:, 0].argmin()]
            values: tuple[Any, ...] = "", math.exp(row[0] - row[4]), None, None
        else:
            _, score, first, last, total = rows[best]
            start, stop = found.character_span(found.windows[best], (int(first), int(last)), context)
            values = context[start:stop], math.exp(score - total), start, stop
        return dict(zip(SPEC.predicted, values, strict=True))


class AnswerScorer:
    """Scorer of predicted answers. A question without labelled answers has no answer, as in SQuAD 2.0."""

    def __init__(self) -> None:
        self._scores: list[tuple[float, float]] = []

    def add(self, _item: Item, label: tuple[Answer, ...], prediction: Prediction, _location: str) -> None:
        """Score the answer of a question by `answer_scores`."""
        self._scores.append(answer_scores(prediction[SPEC.predicted[0]], [answer.text for answer in label]))

    def report(self) -> dict[str, Any]:
        """Return number of questions, mean exact match and mean F1, or an empty dict without questions."""
        if not self._scores:
            return {}
        exact, f1 = np.mean(self._scores, axis=0).round(DECIMALS).tolist()
        return {"labelled": len(self._scores), "exact_match": exact, "f1": f1}


def _saved_settings(saved: object, folder: Path) -> QuestionAnsweringConfig:
    try:
        return QUESTION_ANSWERING.read_section(from_dict({"task": SPEC.name, SPEC.name: saved}))
    except ConfigError as error:
        hint = f"correct {SETTINGS} in config.json, or remove {SETTINGS}"
        raise ProjectError(CODE, f"config.json: {error.message}", hint, str(folder), EXIT_USAGE) from error


PREDICTOR = AnswerPredictor
