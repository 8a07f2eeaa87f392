"""Targets: labels computed from tokens and side columns when a microbatch is assembled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.data.store.token_store import TokenStore

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments gathered from a store.

    Shapes: T tokens of N segments.

    Attributes:
        ids: int64 [T], the concatenated tokens.
        positions: int64 [T], the position of each token in its segment.
        samples: int64 [N], the sample id of each segment.
        lengths: int64 [N], tokens per segment.
        columns: the store's side columns by name, [T] or [N].
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    samples: NDArray[np.int64]
    lengths: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]


def gather(
    store: TokenStore, segments: NDArray[np.int64], sample_offset: int | NDArray[np.int64]
) -> Segments:
    """Gather segments by their int64 [N] store indices; a sample id is the index plus `sample_offset`."""
    lengths = store.lengths(segments)
    ends = np.cumsum(lengths)
    positions = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    tokens = np.repeat(store.offsets[segments], lengths) + positions
    columns = {
        name: values[tokens if store.is_per_token(name) else segments]
        for name, values in store.columns.items()
    }
    ids = store.tokens[tokens].astype(np.int64)
    return Segments(ids, positions, segments + sample_offset, lengths, columns)


@dataclass(frozen=True, eq=False)
class Targets:
    """Input token ids, int64 [T], and labels, which are -100 or NaN where the loss ignores them.

    Labels are int64 or float32, [T] if they are per token, [N] if they are per segment.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[Any]


class TargetRule(Protocol):
    """Interface of a labelling rule: a pure function of segments, epoch and seed."""

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token, not per segment."""

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Return inputs and labels of segments, possibly none; `epoch` is -1 in evaluations."""
