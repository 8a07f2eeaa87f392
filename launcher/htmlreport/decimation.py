"""Decimation of metrics: the lowest and the highest value of each metric per pixel."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.rundir.records import Record
from neobert.metric_names import TOKENS
from neobert.runfiles.json_values import is_number

PIXELS = 600
"""Columns of a chart: a wide screen shows two charts side by side."""
MAX_NAMES = 256
"""Maximum number of metrics: an untrusted file may have a new name in each line."""
UNCHARTED = frozenset({"step", TOKENS, "train/epoch", "perf/data_wait_share", "time/collate_ms"})
"""Names that are axes, or that another chart shows in other units."""
DERIVED = ("_p50_ms", "_p95_ms", "_moving_ms")
"""Endings of statistics over many steps, which no chart shows."""
Point = tuple[int, float]
"""Step and value."""


@dataclass(slots=True)
class Series:
    """One chart line. `pixels` holds the points with the lowest and the highest value of each pixel."""

    first: Point
    last: Point
    pixels: dict[int, tuple[Point, Point]] = field(default_factory=dict)

    def add(self, pixel: int, point: Point) -> None:
        """Add a point; steps may come in any order."""
        self.first, self.last = min(self.first, point), max(self.last, point)
        low, high = self.pixels.get(pixel, (point, point))
        self.pixels[pixel] = (point if point[1] < low[1] else low, point if point[1] > high[1] else high)

    @property
    def points(self) -> list[Point]:
        """Return the points of the line, by ascending steps."""
        return sorted({point for pixel in self.pixels.values() for point in pixel})

    @property
    def lowest(self) -> Point:
        """Return the point with the lowest value."""
        return min(self.points, key=lambda point: point[1])

    @property
    def highest(self) -> Point:
        """Return the point with the highest value."""
        return max(self.points, key=lambda point: point[1])


@dataclass(slots=True)
class Decimator:
    """Chart lines of rows of metrics, in any order; memory is bounded by metrics times pixels.

    Attributes:
        first, last: range of steps that the pixels divide; other steps go to the first or last pixel.
    """

    first: int
    last: int
    pixels: int = PIXELS
    series: dict[str, Series] = field(default_factory=dict)

    def pixel(self, step: int) -> int:
        """Return the pixel of a step."""
        place = (step - self.first) * self.pixels // max(1, self.last - self.first + 1)
        return min(max(place, 0), self.pixels - 1)

    def add(self, step: int, row: Record) -> None:
        """Add the numbers of a row."""
        for name, value in row.items():
            is_charted = name not in UNCHARTED and not name.endswith(DERIVED)
            if is_charted and is_number(value) and (name in self.series or len(self.series) < MAX_NAMES):
                point = step, value
                self.series.setdefault(name, Series(point, point)).add(self.pixel(step), point)
