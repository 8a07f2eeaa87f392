"""Predictions of a model of words: the label of each word of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neobert.data.tokenize.offsets import with_offsets
from neobert.encoding.counts import TextCounts
from neobert.encoding.runs import Tokens
from neobert.prediction.inputs import Item
from neobert.prediction.kinds import PREDICTION, PROBABILITY, Prediction
from neobert.prediction.predictor import HeadPredictor
from neobert.progress import OnProgress
from neobert.tasks.token_classification.examples import split_between_words, words_of
from neobert.tasks.token_classification.labels import SEPARATOR
from neobert.tasks.token_classification.spec import SPEC

NO_WORD = -1


class WordPredictor(HeadPredictor):
    """Predicts the label of each word, at its first token, as it was trained, and its probability.

    A text that exceeds the length limit is cut between words, so that each word has a label. A word without
    a token, such as one of control characters, has none: null.
    """

    auto_class = SPEC.auto_class

    def _predict(self, items: Sequence[Item], on_progress: OnProgress) -> list[Prediction]:
        pieces = [
            (number, *piece)
            for number, (ids, words) in enumerate(self._tokenized(items))
            for piece in self._pieces(ids, words)
        ]
        sequences = [ids for _, ids, _ in pieces]
        self.counts.add(TextCounts(texts=len(items), tokens=sum(map(len, sequences))))
        sizes = [text.count(SEPARATOR) + 1 if text else 0 for (text,) in items]
        labels: list[list[str | None]] = [[None] * size for size in sizes]
        scores: list[list[float | None]] = [[None] * size for size in sizes]
        for places, logits in self._in_runs(sequences, lambda run, _: self.model.logits(run), on_progress):
            best = logits.double().softmax(-1).max(-1)
            start = 0
            for place in places:
                number, ids, words = pieces[place]
                for word, at in zip(*np.unique(words, return_index=True), strict=True):
                    if word != NO_WORD and labels[number][word] is None:
                        labels[number][word] = self.model.labels[int(best.indices[start + at])]
                        scores[number][word] = float(best.values[start + at])
                start += len(ids)
        return [{PREDICTION: each, PROBABILITY: of} for each, of in zip(labels, scores, strict=True)]

    def _tokenized(self, items: Sequence[Item]) -> list[tuple[list[int], Tokens]]:
        """Return the token ids of each item, and the word of each token."""
        texts = [text for (text,) in items]
        joined = (text.replace(SEPARATOR, " ") for text in texts)
        tokenized = with_offsets(self.tokenizer.words, joined)
        return [
            (ids.tolist(), words_of(text, offsets))
            for text, (ids, offsets) in zip(texts, tokenized, strict=True)
        ]

    def _pieces(self, ids: list[int], words: Tokens) -> list[tuple[Tokens, Tokens]]:
        """Return the framed pieces of a text, and the word of each of their tokens."""
        framing, pieces = self.tokenizer.bundle.framing, []
        for start, stop in split_between_words(words, self.tokenizer.max_length - framing.size):
            before, after = framing.around(start, stop, len(ids))
            piece = np.array([*before, *ids[start:stop], *after], np.int64)
            around = (len(before), len(after))
            if len(piece):
                pieces.append((piece, np.pad(words[start:stop], around, constant_values=NO_WORD)))
        return pieces


PREDICTOR = WordPredictor
