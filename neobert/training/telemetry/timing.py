"""Times of many steps as the fields of a line of metrics: mean, median, 95th percentile, moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neobert.training.telemetry.stopwatch import COLLATE, SECTIONS, STEP

OTHER = "other"
PARTS = (*SECTIONS, OTHER)
# The weight of a step: about the last hundred count.
WEIGHT = 0.02

Step = Mapping[str, float]


class Breakdown:
    """Breakdown of the time of steps, with moving averages over several lines."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def fields(self, steps: Sequence[Step]) -> dict[str, float]:
        """Return `time/<part>_ms` and its companions for the steps of one line, of which there is one."""
        fields: dict[str, float] = {}
        for name in (*PARTS, COLLATE):
            values = [part_ms(step, name) for step in steps]
            fields[f"time/{name}_ms"] = sum(values) / len(values)
            fields |= self.spread(name, values)
        return fields | self.spread(STEP, [step[STEP] for step in steps])

    def spread(self, name: str, values: Sequence[float]) -> dict[str, float]:
        """Return median, 95th percentile and moving average of one time of every step."""
        average = self._averages.get(name, values[0])
        for value in values:
            average += WEIGHT * (value - average)
        self._averages[name] = average
        return {
            f"time/{name}_p50_ms": percentile(values, 50),
            f"time/{name}_p95_ms": percentile(values, 95),
            f"time/{name}_moving_ms": average,
        }


def part_ms(step: Step, name: str) -> float:
    """Return the milliseconds of a part; `other` is what no section was made for."""
    if name == OTHER:
        return step[STEP] - sum(step.get(section, 0.0) for section in SECTIONS)
    return step.get(name, 0.0)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which this many percent lie, linear between neighbours; one value at least."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
