"""Decimation of metrics: per pixel and name, the minimum and the maximum with their steps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from launcher.rundir.records import Record

PIXELS = 600
"""Columns of a chart: a wide screen shows two charts side by side."""
LARGEST = 2**63
MAX_NAMES = 256
"""A file from outside may hold another name in each line."""
UNCHARTED = frozenset(
    {"step", "train/tokens_total", "train/epoch", "perf/data_wait_share", "time/collate_ms"}
)
"""Names that are axes, or that another chart shows in other units."""
DERIVED = ("_p50_ms", "_p95_ms", "_moving_ms")
"""Endings of statistics over many steps, which no chart shows."""


@dataclass(slots=True)
class Series:
    """Points of one chart line: ascending steps, values as they were written."""

    steps: list[int]
    values: list[float]


@dataclass(slots=True)
class Extremes:
    """Smallest and largest value of one name in one pixel."""

    low: float
    low_step: int
    high: float
    high_step: int

    def points(self) -> list[tuple[int, float]]:
        """Return the one or two points in order of steps."""
        return sorted({(self.low_step, self.low), (self.high_step, self.high)})


@dataclass(slots=True)
class Decimator:
    """Collects rows in any order; memory is bounded by names times pixels.

    Attributes:
        first, last: range of steps that the pixels divide; steps outside count to the outer pixels.
    """

    first: int
    last: int
    pixels: int = PIXELS
    _found: dict[str, dict[int, Extremes]] = field(default_factory=dict, init=False)

    def groups(self, steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (pixel, start, stop) for ascending steps."""
        start = 0
        while start < len(steps):
            pixel = self._pixel(steps[start])
            stop = len(steps)
            if pixel < self.pixels - 1:
                stop = bisect_right(steps, pixel, lo=start, key=self._pixel)
            yield pixel, start, stop
            start = stop

    def add(self, pixel: int, steps: Sequence[int], rows: Sequence[Record]) -> None:
        """Add the rows of one pixel."""
        for name in set[str]().union(*rows):
            if name not in UNCHARTED and not name.endswith(DERIVED) and self._is_tracked(name):
                self._add_values(name, pixel, steps, column(rows, name))

    def series(self) -> dict[str, Series]:
        """Return the points of every name that had a number."""
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
        if not are_numbers(values):  # looked at one by one only where that is needed: ten times slower
            numbers = [(step, value) for step, value in zip(steps, values, strict=True) if is_number(value)]
            if not numbers:
                return
            steps, values = [step for step, _ in numbers], [value for _, value in numbers]
        low, high = min(values), max(values)
        found = self._found[name].get(pixel)
        low_step, high_step = steps[values.index(low)], steps[values.index(high)]
        if found is None:
            self._found[name][pixel] = Extremes(low, low_step, high, high_step)
            return
        if low < found.low:
            found.low, found.low_step = low, low_step
        if high > found.high:
            found.high, found.high_step = high, high_step


def column(rows: Sequence[Record], name: str) -> list[Any]:
    """Return the values of one name; None in rows without it."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def is_number(value: object) -> bool:
    """Return whether a chart can show the value: neither NaN nor infinite, nor an integer beyond 64 bits."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < LARGEST


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers of a usual size; NaN and infinities survive a sum."""
    if not set(map(type, values)) <= {int, float}:
        return False
    try:
        return bool(-LARGEST < sum(values) < LARGEST)
    except OverflowError:  # an integer that no float holds
        return False


def _joined(found: dict[int, Extremes]) -> Series:
    points = [point for pixel in sorted(found) for point in found[pixel].points()]
    return Series([step for step, _ in points], [value for _, value in points])
