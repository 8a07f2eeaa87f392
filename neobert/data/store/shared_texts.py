"""Texts of pairs that occur in another pair elsewhere: in the other split, or in another source."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from neobert.data.sources.rows import Row, text_digest, without_layout

MAX_ROWS = 1 << 20
"""Rows of each source that are compared with those of the others, which takes 16 MiB."""


class SharedTexts:
    """Counts rows with a text that occurs elsewhere, in any field, ignoring case and white space."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._evaluation: list[tuple[bytes, ...]] = []
        self._known: set[bytes] = set()
        self._found: set[bytes] = set()
        self._sources: list[array[int]] = []

    def follow(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows of a source unchanged. Read the evaluation split to its end before the others."""
        return self._note(rows) if split == "eval" else self._compare(rows)

    @property
    def of_evaluation(self) -> int:
        """Return the number of evaluation rows with a text of the training split."""
        return sum(any(each in self._found for each in row) for row in self._evaluation)

    @property
    def of_sources(self) -> tuple[int, int]:
        """Return the number of training rows with a text of another source, and that of all compared rows."""
        return count_shared(
            [np.asarray(each, np.uint64).reshape(-1, len(self._fields)) for each in self._sources]
        )

    def _note(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._evaluation.append(digests_of(row, self._fields))
            self._known.update(self._evaluation[-1])
            yield row

    def _compare(self, rows: Iterable[Row]) -> Iterator[Row]:
        self._sources.append(source := array("Q"))
        for number, row in enumerate(rows):
            digests = digests_of(row, self._fields)
            self._found.update(self._known.intersection(digests))
            if number < MAX_ROWS:
                source.extend(int.from_bytes(each, "little") for each in digests)
            yield row


def digests_of(row: Row, fields: Sequence[str]) -> tuple[bytes, ...]:
    """Return the digests of the texts of a row that are compared."""
    return tuple(text_digest(without_layout(row[field])) for field in fields)


def count_shared(sources: Sequence[NDArray[np.unsignedinteger]]) -> tuple[int, int]:
    """Return the number of rows [rows, texts] with a text of another source, and that of all rows."""
    shared = 0
    for index, rows in enumerate(sources):
        others = [each.ravel() for each in (*sources[:index], *sources[index + 1 :])]
        shared += int(np.isin(rows, np.concatenate(others)).any(axis=1).sum()) if others else 0
    return shared, sum(map(len, sources))
