"""Copies of evaluation documents in the training text, ignoring case and white space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from neobert.data.sources.rows import BETWEEN_TEXTS, Row, RowFormat, text_digest, without_layout

DIGEST = np.dtype("<u8")
"""Type of a text digest in a file."""


class Copies:
    """Counts non-empty documents that are in both splits, ignoring case and white space.

    Attributes:
        in_training: training documents that are copies of an evaluation document.
        of_evaluation: evaluation documents with a copy in the training text.
    """

    def __init__(self, rows: RowFormat) -> None:
        self._key = rows.key
        self._evaluation: Counter[bytes] = Counter()
        self._found: set[bytes] = set()
        self.in_training = 0

    def follow(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the documents of a split unchanged, and count copies among them.

        Read the evaluation split to its end before the training split.
        """
        if split == "eval":
            return self._note(rows)
        return self._compare(rows) if self._evaluation else iter(rows)

    @property
    def of_evaluation(self) -> int:
        """Return the number of evaluation documents with a copy."""
        return sum(self._evaluation[digest] for digest in self._found)

    def _note(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if text := self._text(row):
                self._evaluation[text_digest(text)] += 1
            yield row

    def _compare(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            digest = text_digest(self._text(row))
            if digest in self._evaluation:
                self.in_training += 1
                self._found.add(digest)
            yield row

    def _text(self, row: Row) -> str:
        return compared_text(self._key(row))


def compared_text(key: str) -> str:
    """Return the text that copies share; empty for a row without text."""
    return BETWEEN_TEXTS.join(map(without_layout, key.split(BETWEEN_TEXTS))).strip(BETWEEN_TEXTS)


def noting(rows: Iterable[Row], key: Callable[[Row], str], note: Callable[[bytes], object]) -> Iterator[Row]:
    """Yield rows unchanged, and pass the digest of each text to `note`."""
    for row in rows:
        if text := compared_text(key(row)):
            note(text_digest(text))
        yield row


def count_copies(
    training: Iterable[NDArray[np.unsignedinteger]], evaluation: NDArray[np.unsignedinteger]
) -> tuple[int, int]:
    """Return how many training texts are in the evaluation text, and how many of its texts are in them."""
    known, sizes = np.unique(evaluation, return_counts=True)
    in_training, is_found = 0, np.zeros(len(known), dtype=np.bool_)
    for digests in training if len(known) else ():
        places = np.minimum(np.searchsorted(known, digests), len(known) - 1)
        is_copy = known[places] == digests
        in_training += int(is_copy.sum())
        is_found[places[is_copy]] = True
    return in_training, int(sizes[is_found].sum())
