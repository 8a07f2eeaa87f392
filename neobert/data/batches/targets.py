"""Targets: labels computed from tokens and side columns when a microbatch is assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.data.store.segment_store import Segments
from neobert.errors import ProjectError

IGNORED = -100
LABEL_DTYPES = ("int64", "float32")


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


def check_targets(rule: TargetRule, targets: Targets, segments: Segments) -> None:
    """Raise DAT020 unless a rule returned arrays of the shape and dtype of `Targets`."""
    _check_array(rule, "input_ids", targets.input_ids, ("int64",), len(segments.ids), "token")
    if rule.labels_tokens:
        _check_array(rule, "labels", targets.labels, LABEL_DTYPES, len(segments.ids), "token")
    else:
        _check_array(rule, "labels", targets.labels, LABEL_DTYPES, len(segments.lengths), "segment")


def _check_array(
    rule: TargetRule, name: str, values: object, dtypes: tuple[str, ...], count: int, unit: str
) -> None:
    found = type(values).__name__
    if isinstance(values, np.ndarray):
        if values.dtype in dtypes and values.shape == (count,):
            return
        found = f"{values.dtype} {list(values.shape)}"
    kind = type(rule)
    raise ProjectError(
        "DAT020",
        f"targets returned {name} {found}, expected {' or '.join(dtypes)} [{count}]",
        f"return one value per {unit}: see Targets in {__name__}",
        f"{kind.__module__}.{kind.__name__}",
    )
