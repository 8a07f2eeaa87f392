"""Targets: labels computed from tokens and side columns when a microbatch is assembled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.config.schedules import Moment
from neobert.data.store.token_store import TokenStore

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments gathered from a store.

    T tokens of N segments.

    Attributes:
        ids: int64 [T], the concatenated tokens.
        positions: int64 [T], the position of each token in its segment.
        samples: int64 [N], the number of each segment in its text.
        lengths: int64 [N].
        columns: the store's side columns, [T] or [N].
    """

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    samples: NDArray[np.int64]
    lengths: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]


def gather(
    store: TokenStore, segments: NDArray[np.int64], sample_offset: int | NDArray[np.int64]
) -> Segments:
    """Gather segments, int64 [N] places in the store; samples are numbered by place plus `sample_offset`."""
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
    """Input tokens, int64 [T], and labels: -100 or NaN where nothing is predicted.

    Labels are int64 or float32: [T] where tokens are labelled, [N] where segments are.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[Any]


class TargetRule(Protocol):
    """Interface of a labelling rule: a pure function of segments, epoch and seed."""

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token, not per segment."""

    def at(self, moment: Moment | None) -> TargetRule:
        """Return the rule for the microbatches of an optimizer step; None: of an evaluation."""

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Label segments, possibly none; the epoch of an evaluation is -1 (`EVALUATION_EPOCH`)."""
