"""Overlap of the splits and sources of a text, counted while it is prepared."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import BETWEEN_TEXTS, Row, RowFormat, text_digest, without_layout
from neobert.tasks.specs import spec_of

DIGEST = np.dtype("<u8")
"""Type of a text digest in a file."""

MAX_ROWS = 1 << 20
"""Rows of each source that are compared with those of the others, which takes 16 MiB."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Counters of rows that are in both splits, and of texts that several pairs have; None without pairs."""

    copies: Copies
    shared: SharedTexts | None

    @classmethod
    def of(cls, config: RunConfig, rows: RowFormat) -> Overlap:
        """Return the counters for the rows of a run."""
        names = compared_fields(config, rows)
        return cls(Copies(rows), SharedTexts(names) if names else None)

    def follow(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows of a source unchanged. Read the evaluation split to its end before the others."""
        followed = self.copies.follow(split, rows)
        return followed if self.shared is None else self.shared.follow(split, followed)

    def add_to(self, splits: Mapping[str, dict[str, Any]]) -> None:
        """Add the counts to those of the splits, if the training text is one of them."""
        if "train" not in splits:
            return
        train, evaluation = splits["train"]["counts"], splits.get("eval", {}).get("counts")
        if evaluation is not None:
            train["copies_of_evaluation"] = self.copies.in_training
            evaluation["copies_in_training"] = self.copies.of_evaluation
        if self.shared is not None:
            train["texts_of_other_sources"], train["texts_compared"] = self.shared.of_sources
            if evaluation is not None:
                evaluation["texts_in_training"] = self.shared.of_evaluation


def compared_fields(config: RunConfig, rows: RowFormat) -> list[str]:
    """Return the fields whose texts are compared with those of other rows; empty for tasks without pairs."""
    is_of_pairs = spec_of(config).predicts == "pairs"
    return [field.name for field in rows.fields if field.is_text] if is_of_pairs else []


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
        return _compared_text(self._key(row))


def _compared_text(key: str) -> str:
    """Return the text that copies share; empty for a row without text."""
    return BETWEEN_TEXTS.join(map(without_layout, key.split(BETWEEN_TEXTS))).strip(BETWEEN_TEXTS)


def noting(rows: Iterable[Row], key: Callable[[Row], str], note: Callable[[bytes], object]) -> Iterator[Row]:
    """Yield rows unchanged, and pass the digest of each text to `note`."""
    for row in rows:
        if text := _compared_text(key(row)):
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
