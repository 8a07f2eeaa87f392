"""Targets: labels computed from tokens and side columns when a microbatch is assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.data.store.segment_store import Segments

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Targets:
    """Input token ids, int64 [T], and labels, which are -100 or NaN where the loss ignores them.

    Labels are int64 or float32, [T] if they are per token, [N] if they are per segment.

    Attributes:
        masked: the same tokens with masks, and labels [T], for a task that is mixed with masked words.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[Any]
    masked: Targets | None = None


class TargetRule(Protocol):
    """Interface of a labelling rule: a pure function of segments, epoch and seed."""

    @property
    def labels_tokens(self) -> bool:
        """Return whether labels are per token, not per segment."""

    def targets(self, segments: Segments, *, epoch: int, seed: int) -> Targets:
        """Return inputs and labels of segments, possibly none; `epoch` is -1 in evaluations."""
