"""One-sided Student's t-test, computed with the finite sums for integer degrees of freedom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def p_value_below(values: Sequence[float], limit: float) -> float:
    """Return the one-sided p-value for the hypothesis that the mean is below `limit`.

    Needs at least two independent, normally distributed values. If all values are equal, the p-value is 0
    below the limit, and 1 at or above it.
    """
    distance, spread = fmean(values) - limit, stdev(values)
    if spread == 0.0:
        return 0.0 if distance < 0 else 1.0
    return student_t_cdf(distance * math.sqrt(len(values)) / spread, len(values) - 1)


def student_t_cdf(t: float, degrees: int) -> float:
    """Return P(T <= t) of Student's t-distribution with an integer number of degrees of freedom, at least 1.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    is_odd = degrees % 2
    term = math.cos(angle) ** is_odd
    total = 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    within = math.sin(angle) * total
    return 0.5 + 0.5 * (2 / math.pi * (angle + within) if is_odd else within)
