"""Readers of metrics and heartbeats for a report; their memory does not grow with the size of the files."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter, mul, sub
from pathlib import Path

from launcher.htmlreport.decimation import Decimator, Series, are_numbers, column
from launcher.htmlreport.jsonl import batches, first_step, is_plain, step_of
from launcher.rundir.records import (
    BEAT_VALUES,
    FIRST_STEP,
    NUM_RANKS,
    Record,
    last_record,
    read_json,
    sound_values,
)
from neobert.metric_names import EVAL_LOSS, TOKENS, TRAIN_LOSS
from neobert.runfiles.continuation import FILE_NAME as CONTINUED
from neobert.runfiles.json_values import is_count, is_number
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, heartbeat_path, ranks_with_heartbeat
from neobert.units import MIB_PER_GIB

MAX_RANKS = 8
"""A chart has eight colors."""
NEWEST = ("step", TRAIN_LOSS, TOKENS)
STEP_MS, EVALUATION_MS = "time/step_ms", "time/evaluation_ms"
LONGEST_MS = 1e12
"""No step takes 31 years: sums of shorter times are finite."""
GPU_MEMORY, HOST_MEMORY = "gpu_mem_reserved_gib", "host_rss_mib"
STARTING = "start"
"""Phase of a session before its first step."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch: the step of the checkpoint that it resumed from (0 without one), and its number of ranks."""

    first_step: int
    num_ranks: int


ONE_RANK = (Launched(0, 1),)


@dataclass(slots=True)
class Clock:
    """Tokens and training time by step: one entry per pixel.

    Training time is the measured time of steps and evaluations. It excludes the time between sessions. If
    the run continues another run, the tokens of that run are included, its time is not.

    Attributes:
        launches: launches that trained the steps of the run, by ascending first step.
        rank_seconds: training time summed over all ranks; launches may have different numbers of ranks.
        start_tokens: tokens at the start of this run; above 0 if it continues another run.
        timed_step: last step whose time is counted; initially the step that the run continues from.
    """

    launches: Sequence[Launched] = ONE_RANK
    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    start_tokens: int = 0
    timed_step: int = 0
    step_seconds: float = 0.0
    elapsed_s: float = 0.0
    rank_seconds: float = 0.0

    def add(self, steps: list[int], rows: list[Record]) -> None:
        """Add the rows of one pixel, in order."""
        ends, times_ms = _times(steps, rows, STEP_MS)
        if ends:
            counts = map(sub, ends, [min(self.timed_step, ends[0]), *ends[:-1]])
            spent_ms = list(map(mul, times_ms, counts))
            self.step_seconds += sum(spent_ms) / 1000
            self._spend(ends, spent_ms)
            self.timed_step = ends[-1]
        self._spend(*_times(steps, rows, EVALUATION_MS))
        tokens = next((row[TOKENS] for row in reversed(rows) if is_count(row.get(TOKENS))), None)
        if tokens is not None or not self.steps:
            self.steps.append(steps[-1])
            self.tokens.append(self.start_tokens if tokens is None else tokens)
            self.seconds.append(round(self.elapsed_s, 3))

    def _spend(self, steps: list[int], times_ms: list[float]) -> None:
        """Add times of ascending steps, each on the ranks of the launch that trained the step."""
        self.elapsed_s += sum(times_ms) / 1000
        if steps and (last := self._launch_of(steps[-1])) is self._launch_of(steps[0]):
            self.rank_seconds += sum(times_ms) / 1000 * last.num_ranks
        else:
            ranks = (self._launch_of(step).num_ranks for step in steps)
            self.rank_seconds += sum(map(mul, times_ms, ranks)) / 1000

    def _launch_of(self, step: int) -> Launched:
        """Return the last launch that started before a step; the first launch for step 0."""
        return self.launches[max(0, bisect_left(self.launches, step, key=attrgetter("first_step")) - 1)]


@dataclass(slots=True)
class Rank:
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
    clock: Clock = field(default_factory=Clock)
    evaluations: list[int] = field(default_factory=list)
    last: Record = field(default_factory=dict)
    num_rows: int = 0
    num_unreadable: int = 0


def read_history(folder: Path, launches: Sequence[Launched]) -> History:
    """Read metrics.jsonl once; memory does not grow with its length."""
    history, path = History(clock=_clock(folder, launches)), folder / METRICS
    if not is_plain(path):
        return history
    pixels = Decimator(first_step(path), step_of(last_record(path)))
    for rows, num_unreadable in batches(path):
        history.num_rows += len(rows)
        history.num_unreadable += num_unreadable
        steps = [row["step"] for row in rows]
        for pixel, start, stop in pixels.groups(steps):
            pixels.add(pixel, steps[start:stop], rows[start:stop])
            history.clock.add(steps[start:stop], rows[start:stop])
        history.evaluations += [row["step"] for row in rows if EVAL_LOSS in row]
        history.last |= _newest(rows)
    history.series = pixels.series()
    return history


def _clock(folder: Path, launches: Sequence[Launched]) -> Clock:
    """Return a clock that starts at step 0, or at the checkpoint of another run that this run continues."""
    source = read_json(folder / CONTINUED)
    step, tokens = source.get("step"), source.get("tokens_total")
    if not (is_count(step) and is_count(tokens)):
        return Clock(launches)
    return Clock(launches, start_tokens=tokens, timed_step=step)


def launches_of(entries: Iterable[Record], num_ranks: int) -> list[Launched]:
    """Return the launches whose steps are part of the run; a later one replaces steps that it repeats.

    Args:
        entries: entries of the manifest, oldest first.
        num_ranks: number of ranks of a launch that did not record it; such a launch starts at step 0.
    """
    kept: list[Launched] = []
    for entry in entries:
        launched, step, ranks = Launched(0, num_ranks), entry.get(FIRST_STEP), entry.get(NUM_RANKS)
        if is_count(step) and is_count(ranks):
            launched = Launched(step, ranks)
        while kept and kept[-1].first_step >= launched.first_step:
            kept.pop()
        kept.append(launched)
    return kept or [Launched(0, num_ranks)]


def read_ranks(folder: Path) -> tuple[list[Rank], int]:
    """Return the data of the first `MAX_RANKS` ranks, and the number of all ranks."""
    ranks = ranks_with_heartbeat(folder)
    return [_read_rank(folder, rank) for rank in ranks[:MAX_RANKS]], len(ranks)


def saved_steps(folder: Path) -> set[int]:
    """Return the steps of the checkpoints that are on disk."""
    with suppress(OSError):
        names = [
            entry.name for entry in os.scandir(folder / CHECKPOINTS) if entry.is_dir(follow_symlinks=False)
        ]
        return {int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 19}
    return set()


def _newest(rows: list[Record]) -> Record:
    """Return the newest value of each metric in `NEWEST`, which the head of the report shows."""
    found = {name: next((row[name] for row in reversed(rows) if name in row), None) for name in NEWEST}
    return {name: value for name, value in found.items() if value is not None}


def _read_rank(folder: Path, rank: int) -> Rank:
    newest = heartbeat_path(folder, rank)
    paths = [path for path in (newest.with_name(f"{newest.name}.1"), newest) if is_plain(path)]
    read = Rank(rank, {})
    pixels = Decimator(
        min((first_step(path) for path in paths), default=0),
        max((step_of(last_record(path)) for path in paths), default=0),
    )
    for path in paths:
        for rows, _ in batches(path):
            for row in rows:
                _note_events(read, row)
            _add_memory(pixels, rows)
            read.last = sound_values(rows[-1], BEAT_VALUES) if rows else read.last
    read.memory = pixels.series()
    return read


def _note_events(read: Rank, row: Record) -> None:
    if row.get("phase") == STARTING and row["step"] > 0:
        read.sessions[row["step"]] = str(row.get("ts_utc", ""))
    saved = row.get("last_checkpoint_step")
    if type(saved) is int and 0 <= saved < 2**63:
        read.checkpoints.add(saved)


def _add_memory(pixels: Decimator, rows: list[Record]) -> None:
    readings = [
        {
            "gpu": float(row[GPU_MEMORY]) if is_number(row.get(GPU_MEMORY)) else None,
            "host": row[HOST_MEMORY] / MIB_PER_GIB if is_number(row.get(HOST_MEMORY)) else None,
        }
        for row in rows
    ]
    steps = [row["step"] for row in rows]
    for pixel, start, stop in pixels.groups(steps):
        pixels.add(pixel, steps[start:stop], readings[start:stop])


def _times(steps: list[int], rows: list[Record], name: str) -> tuple[list[int], list[float]]:
    """Return steps and milliseconds of the rows with a valid time, from 0 to `LONGEST_MS`."""
    values = column(rows, name)
    if are_numbers(values) and min(values) >= 0 and max(values) < LONGEST_MS:
        return steps, values
    sound = [
        (step, value)
        for step, value in zip(steps, values, strict=True)
        if is_number(value) and 0 <= value < LONGEST_MS
    ]
    return [step for step, _ in sound], [value for _, value in sound]
