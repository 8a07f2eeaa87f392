"""Correlations between predicted scores and the data's scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def correlation_metrics(predicted: Floats, labels: Floats) -> dict[str, float | None]:
    """Return Pearson and Spearman correlation by metric name; None where `pearson` is undefined."""
    return {
        "eval/pearson": pearson(predicted, labels),
        "eval/spearman": pearson(ranks(predicted), ranks(labels)),
    }


def pearson(left: Floats, right: Floats) -> float | None:
    """Return Pearson's correlation, or None if there are fewer than two values or one input is constant."""
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(np.corrcoef(left, right)[0, 1])


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[inverse]
    return shared
