"""Copies of evaluation documents in the training text: exact ones, known by a hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from neobert.data.sources.rows import Row, RowFormat


class Copies:
    """Counts the training documents whose text is that of an evaluation document, empty ones aside."""

    def __init__(self, rows: RowFormat) -> None:
        self._key = rows.key
        self._evaluation: set[bytes] = set()
        self.count = 0

    def follow(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass the documents of a split on, the evaluation's before the others'."""
        if split == "eval":
            return self._note(rows)
        return self._compare(rows) if self._evaluation else iter(rows)

    def _note(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            text = self._key(row)
            if text.strip():
                self._evaluation.add(_hash(text))
            yield row

    def _compare(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.count += _hash(self._key(row)) in self._evaluation
            yield row


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
