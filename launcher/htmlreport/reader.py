"""Readers of metrics and heartbeats for a report; their memory does not grow with the size of the files."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from launcher.io.files import open_regular
from launcher.rundir.records import (
    BEAT_VALUES,
    FIRST_STEP,
    LONGEST_LINE_BYTES,
    NUM_RANKS,
    Record,
    drop_invalid_values,
    last_record,
    read_json,
)
from neobert.metric_names import EVAL_LOSS, TOKENS, TRAIN_LOSS
from neobert.runfiles.continuation import FILE_NAME as CONTINUED
from neobert.runfiles.json_values import is_count, is_number
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, heartbeat_path, ranks_with_heartbeat
from neobert.units import MIB_PER_GIB

MAX_RANKS = 8
"""Maximum number of ranks in a chart, which has eight colors."""
NEWEST = ("step", TRAIN_LOSS, TOKENS)
STEP_MS, EVALUATION_MS = "time/step_ms", "time/evaluation_ms"
LONGEST_MS = 1e12
"""Times of 31 years or more are invalid, so that sums of valid times are finite."""
GPU_MEMORY, HOST_MEMORY = "gpu_mem_reserved_gib", "host_rss_mib"
STARTING = "start"
"""Phase of a session before its first step."""

MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_DEPTH = 32
"""Maximum nesting of a JSON file. Files of a run have fewer than ten levels; hundreds overflow the stack."""

PIXELS = 600
"""Columns of a chart, about half the width of a screen."""
MAX_NAMES = 256
"""Maximum number of metrics: an untrusted file may have a new name in each line."""
UNCHARTED = frozenset({"step", TOKENS, "train/epoch", "perf/data_wait_share", "time/collate_ms"})
"""Metrics that are axes of the charts, or that another chart shows in other units."""
DERIVED = ("_p50_ms", "_p95_ms", "_moving_ms")
"""Suffixes of statistics over many steps, which no chart shows."""
Point = tuple[int, float]
"""Step and value."""


@dataclass(frozen=True, slots=True)
class LaunchStart:
    """A launch: the step of the checkpoint that it resumed from (0 if none), and its number of ranks."""

    first_step: int
    num_ranks: int


ONE_RANK = (LaunchStart(0, 1),)


@dataclass(slots=True)
class TrainingClock:
    """Tokens and training time by step: one entry per pixel.

    Training time is the measured time of steps and evaluations. It excludes the time between sessions. If
    the run continues another run, the tokens of that run are included, its time is not.

    Attributes:
        points: step, tokens and seconds by pixel.
        launches: launches that trained the steps of the run, by ascending first step.
        rank_seconds: training time summed over all ranks; launches may have different numbers of ranks.
        start_tokens: tokens at the start of this run; above 0 if it continues another run.
        timed_step: last step whose time is counted; initially the step that the run continues from.
    """

    launches: Sequence[LaunchStart] = ONE_RANK
    points: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    start_tokens: int = 0
    timed_step: int = 0
    step_seconds: float = 0.0
    elapsed_s: float = 0.0
    rank_seconds: float = 0.0

    def add(self, pixel: int, step: int, row: Record) -> None:
        """Add tokens and times of a row of metrics; rows must come in the order of the file."""
        if (step_ms := _valid_time_ms(row, STEP_MS)) is not None:
            spent_ms = step_ms * (step - min(self.timed_step, step))
            self.step_seconds += spent_ms / 1000
            self._add_time(step, spent_ms)
            self.timed_step = step
        self._add_time(step, _valid_time_ms(row, EVALUATION_MS) or 0.0)
        has_tokens = is_count(row.get(TOKENS))
        if has_tokens or not self.points:
            tokens = row[TOKENS] if has_tokens else self.start_tokens
            self.points[pixel] = step, tokens, round(self.elapsed_s, 3)

    def _add_time(self, step: int, time_ms: float) -> None:
        self.elapsed_s += time_ms / 1000
        self.rank_seconds += time_ms / 1000 * self._launch_at(step).num_ranks

    def _launch_at(self, step: int) -> LaunchStart:
        """Return the last launch whose first step is below a step, or the first launch if there is none."""
        return self.launches[max(0, bisect_left(self.launches, step, key=attrgetter("first_step")) - 1)]


@dataclass(slots=True)
class RankData:
    """Data from the heartbeats of one rank.

    Attributes:
        memory: chart lines in GiB, by kind (gpu, host).
        sessions: start times of resumed sessions, by the step that they resumed from.
        checkpoints: steps of checkpoints that the heartbeats report.
        last: newest heartbeat.
    """

    rank: int
    memory: dict[str, Series]
    sessions: dict[int, str] = field(default_factory=dict)
    checkpoints: set[int] = field(default_factory=set)
    last: Record = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """Metrics of a run.

    Attributes:
        evaluations: steps that have an evaluation.
        last: newest values of `NEWEST`.
    """

    series: dict[str, Series] = field(default_factory=dict)
    clock: TrainingClock = field(default_factory=TrainingClock)
    evaluations: list[int] = field(default_factory=list)
    last: Record = field(default_factory=dict)
    num_rows: int = 0
    num_unreadable: int = 0


def read_history(folder: Path, launches: Sequence[LaunchStart]) -> History:
    """Read metrics.jsonl of a run directory; empty if it is not a readable regular file.

    The memory that is used does not grow with the length of the file.
    """
    history, path = History(clock=_make_clock(folder, launches)), folder / METRICS
    if not is_readable_file(path):
        return history
    charts = Decimator(first_step(path), row_step(last_record(path)))
    for row in read_rows(path):
        if row is None:
            history.num_unreadable += 1
            continue
        step = row["step"]
        charts.add(step, row)
        history.clock.add(charts.pixel(step), step, row)
        history.num_rows += 1
        if EVAL_LOSS in row:
            history.evaluations.append(step)
        history.last |= {name: row[name] for name in NEWEST if row.get(name) is not None}
    history.series = charts.series
    return history


def _make_clock(folder: Path, launches: Sequence[LaunchStart]) -> TrainingClock:
    """Return a clock that starts at step 0, or at the step and tokens of the run that this one continues."""
    source = read_json(folder / CONTINUED)
    step, tokens = source.get("step"), source.get("tokens_total")
    if not (is_count(step) and is_count(tokens)):
        return TrainingClock(launches)
    return TrainingClock(launches, start_tokens=tokens, timed_step=step)


def effective_launches(entries: Iterable[Record], num_ranks: int) -> list[LaunchStart]:
    """Return the launches whose steps count: a later launch replaces launches from its first step on.

    Args:
        entries: entries of the manifest, oldest first.
        num_ranks: number of ranks of a launch that did not record it; such a launch starts at step 0.
    """
    kept: list[LaunchStart] = []
    for entry in entries:
        launched, step, ranks = LaunchStart(0, num_ranks), entry.get(FIRST_STEP), entry.get(NUM_RANKS)
        if is_count(step) and is_count(ranks):
            launched = LaunchStart(step, ranks)
        while kept and kept[-1].first_step >= launched.first_step:
            kept.pop()
        kept.append(launched)
    return kept or [LaunchStart(0, num_ranks)]


def read_ranks(folder: Path) -> tuple[list[RankData], int]:
    """Return the heartbeat data of the first `MAX_RANKS` ranks, and the number of ranks with heartbeats."""
    ranks = ranks_with_heartbeat(folder)
    return [_read_rank(folder, rank) for rank in ranks[:MAX_RANKS]], len(ranks)


def saved_steps(folder: Path) -> set[int]:
    """Return the steps of the checkpoints on disk; empty if their folder cannot be read."""
    with suppress(OSError):
        names = [
            entry.name for entry in os.scandir(folder / CHECKPOINTS) if entry.is_dir(follow_symlinks=False)
        ]
        return {int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 19}
    return set()


def _read_rank(folder: Path, rank: int) -> RankData:
    newest = heartbeat_path(folder, rank)
    paths = [path for path in (newest.with_name(f"{newest.name}.1"), newest) if is_readable_file(path)]
    read = RankData(rank, {})
    charts = Decimator(
        min((first_step(path) for path in paths), default=0),
        max((row_step(last_record(path)) for path in paths), default=0),
    )
    for row in (row for path in paths for row in read_rows(path) if row is not None):
        _record_events(read, row)
        host = row.get(HOST_MEMORY)
        memory = {"gpu": row.get(GPU_MEMORY), "host": host / MIB_PER_GIB if is_number(host) else None}
        charts.add(row["step"], memory)
        read.last = row
    read.last, read.memory = drop_invalid_values(read.last, BEAT_VALUES), charts.series
    return read


def _record_events(rank: RankData, row: Record) -> None:
    if row.get("phase") == STARTING and row["step"] > 0:
        rank.sessions[row["step"]] = str(row.get("ts_utc", ""))
    saved = row.get("last_checkpoint_step")
    if type(saved) is int and 0 <= saved < 2**63:
        rank.checkpoints.add(saved)


def _valid_time_ms(row: Record, name: str) -> float | None:
    value = row.get(name)
    return value if is_number(value) and 0 <= value < LONGEST_MS else None


def read_document(folder: Path, name: str) -> Record:
    """Read a JSON object of a run directory; empty if the file is missing, damaged, too large or a link."""
    try:
        with open_regular(folder / name, follows_link=False) as file:
            content = json.loads(file.read(MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and not _is_nested_deeper(content, MAX_DEPTH) else {}


def read_rows(path: Path) -> Iterator[Record | None]:
    """Yield the rows with a step, and None for each line that is not JSON.

    Skips lines over `LONGEST_LINE_BYTES` and an unfinished last line; yields nothing if the file cannot be
    read.
    """
    with suppress(OSError), open_regular(path, follows_link=False) as file:
        while line := file.readline(LONGEST_LINE_BYTES):
            if not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = file.readline(LONGEST_LINE_BYTES)
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if row is None or (type(row) is dict and is_count(row.get("step"))):
                yield row


def row_step(row: Record) -> int:
    """Return the step of a row, or 0 if it is missing or invalid."""
    return row["step"] if is_count(row.get("step")) else 0


def first_step(path: Path) -> int:
    """Return the step of the first row that has one, or 0 if no row has one."""
    return next((row["step"] for row in read_rows(path) if row), 0)


def is_readable_file(path: Path) -> bool:
    """Return whether the path is a readable regular file; False for a symbolic link."""
    with suppress(OSError), open_regular(path, follows_link=False):
        return True
    return False


def _is_nested_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_nested_deeper(each, levels - 1) for each in inner)


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
        """Kept points of the line, by ascending step."""
        return sorted({point for pixel in self.pixels.values() for point in pixel})

    @property
    def lowest(self) -> Point:
        """Point with the lowest value."""
        return min(self.points, key=lambda point: point[1])

    @property
    def highest(self) -> Point:
        """Point with the highest value."""
        return max(self.points, key=lambda point: point[1])


@dataclass(slots=True)
class Decimator:
    """Chart lines with at most two points per pixel, from rows in any order; bounds the memory.

    Attributes:
        first, last: range of steps that the pixels divide.
    """

    first: int
    last: int
    pixels: int = PIXELS
    series: dict[str, Series] = field(default_factory=dict)

    def pixel(self, step: int) -> int:
        """Return the pixel column of a step, from 0; the first or last one for a step outside the range."""
        place = (step - self.first) * self.pixels // max(1, self.last - self.first + 1)
        return min(max(place, 0), self.pixels - 1)

    def add(self, step: int, row: Record) -> None:
        """Add the charted numbers of a row; names beyond the first `MAX_NAMES` are ignored."""
        for name, value in row.items():
            is_charted = name not in UNCHARTED and not name.endswith(DERIVED)
            if is_charted and is_number(value) and (name in self.series or len(self.series) < MAX_NAMES):
                point = step, value
                self.series.setdefault(name, Series(point, point)).add(self.pixel(step), point)
