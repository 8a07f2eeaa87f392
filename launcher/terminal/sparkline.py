"""Line charts of a few rows for terminals, in eighths of a character, or in ASCII."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from statistics import quantiles

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " ._-=+*%#"
CLIPPED_SHARE = 50
"""The scale omits the lowest and highest 1/50 of the values: a high initial loss would flatten the rest."""


def spark(values: Sequence[float | None], height: int, *, is_unicode: bool) -> list[str]:
    """Draw one column per value, `height` rows from top to bottom; a column without a value stays blank."""
    levels = BLOCKS if is_unicode else ASCII
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return [" " * len(values)] * height
    low, high = _range(finite)
    most = 8 * height - 1
    filled = [None if value is None else _level(value, low, high, most) for value in values]
    return [
        "".join(" " if level is None else levels[min(8, max(0, level - 8 * row))] for level in filled)
        for row in reversed(range(height))
    ]


def _range(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < CLIPPED_SHARE:
        return min(values), max(values)
    cuts = quantiles(values, n=CLIPPED_SHARE)
    return cuts[0], cuts[-1]


def _level(value: float, low: float, high: float, most: int) -> int:
    """Return the height of a value, from 1 to most + 1 eighths of a row; the maximum for NaN and infinity."""
    if not math.isfinite(value):
        return most + 1
    share = (value - low) / (high - low) if high > low else 0.0
    return 1 + round(min(1.0, max(0.0, share)) * most)


def bucketed(
    positions: Sequence[int], values: Sequence[float], width: int, first: int, last: int
) -> list[float | None]:
    """Return the mean of the values in each of `width` equal ranges of [first, last]; positions ascend.

    A range without values repeats the previous mean; it is None before the first value and after the last.
    """
    means: list[float | None] = []
    start = 0
    for column in range(1, width + 1):
        limit = first + (last - first) * column / width
        end = bisect_right(positions, limit, lo=start)
        chunk = values[start:end]
        if chunk:
            means.append(sum(chunk) / len(chunk))
        else:
            means.append(means[-1] if means and end < len(positions) else None)
        start = end
    return means
