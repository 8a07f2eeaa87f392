"""Predictions of a model of words: the label of each word of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from neobert.data.sources.rows import TEXT
from neobert.data.tokenize.offsets import tokenize_with_offsets
from neobert.encoding.counts import TextCounts
from neobert.encoding.packed_rows import Tokens
from neobert.prediction.class_scores import class_scores, share
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import PREDICTION, PROBABILITY, Prediction
from neobert.prediction.predictor import HeadPredictor, Scorer
from neobert.progress import OnProgress
from neobert.tasks.token_classification.examples import split_between_words, word_indices
from neobert.tasks.token_classification.labels import SEPARATOR, TAGS, require_label_per_word
from neobert.tasks.token_classification.metrics import Entity, TagScheme
from neobert.tasks.token_classification.spec import SPEC

NO_WORD = -1


class WordPredictor(HeadPredictor):
    """Predicts the label of each word at its first token, as in training, with its probability.

    A text that exceeds the length limit is cut between words, so that each word has a label. A word without
    a token, such as one of control characters, has none: null.
    """

    auto_class = SPEC.auto_class

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels of words, in their order."""
        return self.model.labels

    @classmethod
    def scorer(cls, classes: Sequence[str], names: Sequence[str]) -> Scorer:  # noqa: ARG003
        """Return an empty scorer of labels, and of entities if labels mark them."""
        return WordScorer(classes)

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        pieces = [
            (number, *piece)
            for number, (ids, words) in enumerate(self._tokenize_items(items))
            for piece in self._framed_pieces(ids, words)
        ]
        sequences = [ids for _, ids, _ in pieces]
        self.counts.add(TextCounts(texts=len(items), tokens=sum(map(len, sequences))))
        sizes = [text.count(SEPARATOR) + 1 if text else 0 for (text,) in items]
        labels: list[list[str | None]] = [[None] * size for size in sizes]
        scores: list[list[float | None]] = [[None] * size for size in sizes]
        for indices, logits in self._compute_in_runs(
            sequences, lambda packed, _: self.model.logits(packed), on_progress
        ):
            best = logits.double().softmax(-1).max(-1)
            start = 0
            for index in indices:
                number, ids, words = pieces[index]
                for word, at in zip(*np.unique(words, return_index=True), strict=True):
                    if word != NO_WORD and labels[number][word] is None:
                        labels[number][word] = self.model.labels[int(best.indices[start + at])]
                        scores[number][word] = float(best.values[start + at])
                start += len(ids)
        return [{PREDICTION: each, PROBABILITY: of} for each, of in zip(labels, scores, strict=True)]

    def _tokenize_items(self, items: Sequence[Item]) -> list[tuple[list[int], Tokens]]:
        """Return token ids and word indices [T] of each item."""
        texts = [text for (text,) in items]
        joined = (text.replace(SEPARATOR, " ") for text in texts)
        tokenized = tokenize_with_offsets(self.tokenizer.words, joined)
        return [
            (ids.tolist(), word_indices(text, offsets))
            for text, (ids, offsets) in zip(texts, tokenized, strict=True)
        ]

    def _framed_pieces(self, ids: list[int], words: Tokens) -> list[tuple[Tokens, Tokens]]:
        """Return each framed piece of a text with the word indices of its tokens."""
        framing, pieces = self.tokenizer.bundle.framing, []
        for start, stop in split_between_words(words, self.tokenizer.max_length - framing.size):
            before, after = framing.piece_frame(start, stop, len(ids))
            piece = np.array([*before, *ids[start:stop], *after], np.int64)
            around = (len(before), len(after))
            if len(piece):
                pieces.append((piece, np.pad(words[start:stop], around, constant_values=NO_WORD)))
        return pieces


class WordScorer:
    """Scorer of predicted labels. A word without a predicted label is not scored, as in training."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes, self._tagging = classes, TagScheme(classes)
        self._numbers = {name: number for number, name in enumerate(classes)}
        self._pairs = Counter[tuple[str, str]]()
        self._found, self._true, self._both = 0, 0, 0

    def add(self, item: Item, label: tuple[int, ...], prediction: Prediction, location: str) -> None:
        """Count the words of a text. Raises DAT020 unless each word has a label."""
        require_label_per_word({TEXT: item[0], TAGS: label}, location)
        words = zip(label, prediction[PREDICTION], strict=True)
        pairs = [(true, self._numbers[name]) for true, name in words if name is not None]
        self._pairs.update((self._classes[true], self._classes[found]) for true, found in pairs)
        if self._tagging.marks_entities:
            true, found = (
                (self._find_entities(each) for each in zip(*pairs, strict=True)) if pairs else ((), ())
            )
            self._found += len(found)
            self._true += len(true)
            self._both += len({*found} & {*true})

    def _find_entities(self, labels: Sequence[int]) -> set[Entity]:
        return self._tagging.entities(np.array(labels), np.zeros(len(labels), np.int64))

    def report(self) -> dict[str, Any]:
        """Return accuracy, scores by label, and entity scores if labels mark them; empty without labels."""
        if not self._pairs:
            return {}
        scores = class_scores(self._pairs.elements(), self._classes, "words")
        if self._tagging.marks_entities:
            scores["precision"] = share(self._both, self._found)
            scores["recall"] = share(self._both, self._true)
            scores["f1"] = share(2 * self._both, self._found + self._true)
        return scores


PREDICTOR = WordPredictor
