"""Distribution-free statistics of a few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple

WANTED_COVERAGE = 0.95


class Interval(NamedTuple):
    """Two of the values, and how surely the median of what they were drawn from lies between them."""

    low: float
    high: float
    coverage: float

    @property
    def excludes_equality(self) -> bool:
        """Return whether a ratio of 1 lies outside."""
        return not self.low <= 1 <= self.high


def median_interval(values: Sequence[float]) -> Interval:
    """Return the narrowest pair of order statistics that covers the median as surely as wanted.

    Where the values are too few for that, it is the widest pair, with the lower coverage that it has.
    """
    ordered, n = sorted(values), len(values)
    depths = [depth for depth in range(n // 2) if coverage_of(n, depth) >= WANTED_COVERAGE]
    depth = max(depths, default=0)
    return Interval(ordered[depth], ordered[n - 1 - depth], coverage_of(n, depth))


def coverage_of(n: int, depth: int) -> float:
    """Return how often the median lies between the values with `depth` values beyond them on each side."""
    beyond: float = sum(comb(n, k) for k in range(depth + 1)) / 2**n
    return max(0.0, 1 - 2 * beyond)


class Comparison(NamedTuple):
    """Speed of b relative to a.

    Attributes:
        ratio: median of the rounds' ratios.
        ratios: one per round, so that slowdowns of both configs in a round cancel.
    """

    ratio: float
    interval: Interval
    ratios: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """faster, slower, no difference shown, or none of these where rounds are too few to tell."""
        if self.interval.coverage < WANTED_COVERAGE:
            return "too few rounds for a verdict"
        if not self.interval.excludes_equality:
            return "no difference shown"
        return "b is faster" if self.ratio > 1 else "b is slower"


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compare rates of the same rounds."""
    ratios = tuple(right / left for left, right in zip(a, b, strict=True))
    return Comparison(median(ratios), median_interval(ratios), ratios)
