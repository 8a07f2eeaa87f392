"""History of a run's metrics, sampled to bound the memory, and positions for comparing runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.rundir.records import Record, iterate_lines, parse_metrics
from neobert.metric_names import EVAL, PACE, TOKENS, TRAIN_LOSS
from neobert.runfiles.json_values import is_count

Axis = Literal["step", "tokens"]
KEPT = (TRAIN_LOSS, PACE)
PARSED_BYTES = 16 * 2**20
"""Training lines are parsed up to this size of the file (about 20,000), and from there on every n-th."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one metric by position (step or tokens), in ascending order."""

    positions: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, position: int, value: float) -> None:
        """Add a value; ignored if its position is not above the last one."""
        if not self.positions or position > self.positions[-1]:
            self.positions.append(position)
            self.values.append(value)

    def mean(self, after: int, upto: int) -> float | None:
        """Return the mean of the values at positions in (after, upto], or None if there are none."""
        values = self.values[bisect_right(self.positions, after) : bisect_right(self.positions, upto)]
        return sum(values) / len(values) if values else None

    def value_at(self, position: int) -> tuple[float | None, bool]:
        """Return the value at a position (None outside the series), and whether it is interpolated."""
        index = bisect_right(self.positions, position)
        if index and self.positions[index - 1] == position:
            return self.values[index - 1], False
        if not 0 < index < len(self.positions):
            return None, False
        left, right = self.positions[index - 1], self.positions[index]
        share = (position - left) / (right - left)
        return self.values[index - 1] * (1 - share) + self.values[index] * share, True


@dataclass(slots=True)
class RunHistory:
    """Metrics of a run by step, or by tokens.

    Attributes:
        last: last position with a value.
    """

    series: dict[str, Series] = field(default_factory=dict)
    last: int = 0

    @classmethod
    def read(cls, path: Path, axis: Axis) -> RunHistory:
        """Read all evaluations and a sample of the training losses, in bounded memory."""
        history, records = cls(), _sample_records(path)
        tokens = _tokens_by_step(records)
        for record in records:
            position = record["step"] if axis == "step" else tokens.value_at(record["step"])[0]
            if position is not None:
                history.add(record, round(position))
        return history

    def add(self, record: Record, position: int) -> None:
        """Add the training loss, the throughput and the evaluation metrics of a line at a position."""
        for name, value in record.items():
            if name in KEPT or name.startswith(EVAL):
                self.series.setdefault(name, Series()).add(position, value)
                self.last = max(self.last, position)

    def evaluations(self) -> list[Record]:
        """Return one record per evaluation, in ascending order, with its position as `step`."""
        rows: dict[int, Record] = {}
        for name, series in self.series.items():
            if name.startswith(EVAL):
                for position, value in zip(series.positions, series.values, strict=True):
                    rows.setdefault(position, {"step": position})[name] = value
        return [rows[position] for position in sorted(rows)]

    def metric(self, name: str) -> Series:
        """Return the series of a metric; an empty one if it was not reported."""
        return self.series.get(name, Series())


def _sample_records(path: Path) -> list[Record]:
    every = 1 + _file_size_bytes(path) // PARSED_BYTES
    lines = (
        parse_metrics(line)
        for number, line in enumerate(iterate_lines(path))
        if number % every == 0 or b'"eval/' in line
    )
    return [record for record in lines if record and "step" in record]


def _tokens_by_step(records: Sequence[Record]) -> Series:
    """Return the series of tokens by step, from which the tokens at an evaluation are interpolated."""
    tokens = Series([0], [0])
    for record in records:
        if is_count(record.get(TOKENS)):
            tokens.add(record["step"], record[TOKENS])
    return tokens


def _file_size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def common_positions(histories: Sequence[Series], last: int, most: int) -> list[int]:
    """Return up to `most` positions at which to compare runs, in ascending order and at most `last`.

    Uses positions that all series share. If there are fewer than two, it uses the positions of the shortest
    series that is not empty; if all series are empty, evenly spaced positions.
    """
    positions = [{each for each in series.positions if 0 < each <= last} for series in histories]
    shared = sorted(set.intersection(*positions)) if positions else []
    if len(shared) < 2:
        shared = sorted(min(filter(None, positions), key=len, default=()))
    if not shared:
        shared = sorted({max(1, last * part // most) for part in range(1, most + 1)}) if last else []
    every = -(-len(shared) // most) if shared else 1
    return shared[::-1][::every][::-1]
