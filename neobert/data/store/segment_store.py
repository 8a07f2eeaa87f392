"""Interface of stored segments, whether they are in one file or in many.

Shapes: T tokens, N segments of E examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.batches.stateless_random import permutation_slice

SAMPLE_SEGMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Mean, standard deviation and maximum of the lengths of examples, in tokens."""

    mean: float
    std: float
    longest: int

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer]) -> LengthStatistics:
        """Return the statistics of lengths [N]."""
        return cls(float(lengths.mean()), float(lengths.std()), int(lengths.max()))


class SegmentStore(ABC):
    """Examples: each is a segment of token ids or, with the column `GROUP`, several consecutive ones."""

    statistics: LengthStatistics

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples."""

    @property
    @abstractmethod
    def num_segments(self) -> int:
        """Number of segments in all examples."""

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens in all segments."""

    @property
    @abstractmethod
    def column_names(self) -> tuple[str, ...]:
        """Names of the side columns."""

    @abstractmethod
    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the values of a side column, [T] or [N] in all, file by file."""

    @abstractmethod
    def highest_id(self) -> int:
        """Read all tokens and return the largest id."""

    @abstractmethod
    def lengths(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of these examples, in tokens."""

    @abstractmethod
    def gather(self, examples: NDArray[np.int64], sample_offset: int | NDArray[np.int64] = 0) -> Segments:
        """Read the segments of these examples, int64 [n]; n may be 0.

        The sample id of a segment is its number plus `sample_offset`, one for all examples or int64 [n].
        """

    @abstractmethod
    def segment(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one segment."""

    @abstractmethod
    def example(self, number: int) -> NDArray[np.unsignedinteger]:
        """Return the tokens of one example."""

    def sample_lengths(self) -> NDArray[np.int64]:
        """Return the lengths in tokens of a fixed random sample of at most `SAMPLE_SEGMENTS` examples."""
        return self.lengths(permutation_slice(0, 0, min(SAMPLE_SEGMENTS, len(self)), len(self)))


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments gathered from a store.

    Shapes: T tokens of N segments.

    Attributes:
        ids: int64 [T], the concatenated tokens.
        positions: int64 [T], the position of each token in its segment.
        samples: int64 [N], the sample id of each segment.
        groups: int64 [N], the example of each segment, counted from 0.
        lengths: int64 [N], tokens per segment.
        columns: the store's side columns by name, [T] or [N].
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    samples: NDArray[np.int64]
    groups: NDArray[np.int64]
    lengths: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]


def positions_in_segments(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 to length - 1 for each of the lengths [N], concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
