"""Decimation of metrics: mean, minimum and maximum of each metric per pixel, with steps of the extremes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from launcher.rundir.records import Record
from neobert.metric_names import TOKENS
from neobert.runfiles.json_values import LARGEST, is_number

PIXELS = 600
"""Columns of a chart: a wide screen shows two charts side by side."""
MAX_NAMES = 256
"""Maximum number of metrics: an untrusted file may have a new name in each line."""
UNCHARTED = frozenset({"step", TOKENS, "train/epoch", "perf/data_wait_share", "time/collate_ms"})
"""Names that are axes, or that another chart shows in other units."""
DERIVED = ("_p50_ms", "_p95_ms", "_moving_ms")
"""Endings of statistics over many steps, which no chart shows."""


@dataclass(slots=True)
class Band:
    """Extremes of each pixel, with the steps at which they occurred."""

    lows: list[float]
    low_steps: list[int]
    highs: list[float]
    high_steps: list[int]


@dataclass(slots=True)
class Series:
    """One chart line, by ascending steps.

    Attributes:
        values: the original values; the mean of each pixel if a pixel has more than two values.
        band: extremes of each pixel; None if `values` are the original values.
        first, last: the first and the last original value.
        lowest, highest: the extreme original values, with their steps.
    """

    steps: list[int]
    values: list[float]
    band: Band | None
    first: float
    last: float
    lowest: tuple[float, int]
    highest: tuple[float, int]


@dataclass(slots=True)
class Bucket:
    """Statistics of one metric in one pixel. `first` and `last` are (step, value)."""

    low: float
    low_step: int
    high: float
    high_step: int
    total: float
    count: int
    first: tuple[int, float]
    last: tuple[int, float]

    def merge(self, other: Bucket) -> None:
        """Merge the statistics of values of the same pixel that were read later."""
        if other.low < self.low:
            self.low, self.low_step = other.low, other.low_step
        if other.high > self.high:
            self.high, self.high_step = other.high, other.high_step
        self.total, self.count = self.total + other.total, self.count + other.count
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)

    @property
    def middle(self) -> int:
        """Return the step at which the mean is drawn."""
        return (self.first[0] + self.last[0]) // 2

    @property
    def mean(self) -> float:
        """Return the mean, or the midpoint of minimum and maximum if the sum is not finite."""
        return self.total / self.count if math.isfinite(self.total) else self.low / 2 + self.high / 2


@dataclass(slots=True)
class Decimator:
    """Collector of rows of metrics, in any order; memory is bounded by metrics times pixels.

    Attributes:
        first, last: range of steps that the pixels divide; other steps go to the first or last pixel.
    """

    first: int
    last: int
    pixels: int = PIXELS
    _found: dict[str, dict[int, Bucket]] = field(default_factory=dict, init=False)

    def groups(self, steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (pixel, start, stop): the slice of the ascending `steps` that falls into each pixel."""
        start = 0
        while start < len(steps):
            pixel = self._pixel(steps[start])
            stop = len(steps)
            if pixel < self.pixels - 1:
                stop = bisect_right(steps, pixel, lo=start, key=self._pixel)
            yield pixel, start, stop
            start = stop

    def add(self, pixel: int, steps: Sequence[int], rows: Sequence[Record]) -> None:
        """Add the metrics of rows that fall into one pixel; `steps` are the steps of the rows."""
        for name in set[str]().union(*rows):
            if name not in UNCHARTED and not name.endswith(DERIVED) and self._is_tracked(name):
                self._add_values(name, pixel, steps, column(rows, name))

    def series(self) -> dict[str, Series]:
        """Return the chart line of every metric that has at least one number."""
        return {name: _joined(found) for name, found in self._found.items() if found}

    def _pixel(self, step: int) -> int:
        place = (step - self.first) * self.pixels // max(1, self.last - self.first + 1)
        return min(max(place, 0), self.pixels - 1)

    def _is_tracked(self, name: str) -> bool:
        if name in self._found:
            return True
        if len(self._found) < MAX_NAMES:
            self._found[name] = {}
            return True
        return False

    def _add_values(self, name: str, pixel: int, steps: Sequence[int], values: list[Any]) -> None:
        if values.count(None) == len(values):
            return
        if not are_numbers(values):  # ten times slower, so only if necessary
            numbers = [(step, value) for step, value in zip(steps, values, strict=True) if is_number(value)]
            if not numbers:
                return
            steps, values = [step for step, _ in numbers], [value for _, value in numbers]
        low, high = min(values), max(values)
        bucket = Bucket(
            low=low,
            low_step=steps[values.index(low)],
            high=high,
            high_step=steps[values.index(high)],
            total=float(sum(values)),
            count=len(values),
            first=(steps[0], values[0]),
            last=(steps[-1], values[-1]),
        )
        if pixel in self._found[name]:
            self._found[name][pixel].merge(bucket)
        else:
            self._found[name][pixel] = bucket


def column(rows: Sequence[Record], name: str) -> list[Any]:
    """Return the values of one metric, one per row; None for rows without the metric."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers with a finite sum, which NaN and infinity would spoil."""
    if not set(map(type, values)) <= {int, float}:
        return False
    try:
        return bool(-LARGEST < sum(values) < LARGEST)
    except OverflowError:  # an integer too large for a float
        return False


def _joined(found: dict[int, Bucket]) -> Series:
    buckets = [found[pixel] for pixel in sorted(found)]
    lowest, highest = min(buckets, key=lambda each: each.low), max(buckets, key=lambda each: each.high)
    if all(bucket.count <= 2 for bucket in buckets):
        points = [point for bucket in buckets for point in sorted({bucket.first, bucket.last})]
        band = None
    else:
        points = [(bucket.middle, bucket.mean) for bucket in buckets]
        band = Band(
            lows=[bucket.low for bucket in buckets],
            low_steps=[bucket.low_step for bucket in buckets],
            highs=[bucket.high for bucket in buckets],
            high_steps=[bucket.high_step for bucket in buckets],
        )
    return Series(
        steps=[step for step, _ in points],
        values=[value for _, value in points],
        band=band,
        first=buckets[0].first[1],
        last=buckets[-1].last[1],
        lowest=(lowest.low, lowest.low_step),
        highest=(highest.high, highest.high_step),
    )
