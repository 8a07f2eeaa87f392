"""Segments read from a store, as target rules get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def places_in(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 to length - 1 for each of the lengths [N], concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
