"""Incremental reader of a run directory, cheap enough to update a display every second."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from launcher.rundir.directory import is_locked
from launcher.rundir.records import (
    MetricsTail,
    Record,
    failure_reason,
    get_records,
    last_heartbeat,
    read_json,
    read_outcome,
)
from launcher.rundir.run_history import RunHistory
from launcher.rundir.run_status import History, RunStatus, compute_heartbeat_age_s, read_status
from neobert.metric_names import EVAL
from neobert.runfiles.run_dir import (
    MANIFEST,
    METRICS,
    OUTCOME,
    RESOLVED,
    ranks_with_heartbeat,
)
from neobert.runfiles.samples import FILE_NAME as SAMPLES
from neobert.runfiles.samples import Samples, parse_samples

MAX_RANKS = 1024
OUTCOME_FINAL_AFTER_S = 10.0
"""Between a failure and the restart, the outcome of the failed session exists briefly."""


class RankView(NamedTuple):
    """Newest heartbeat of a rank, and its age in seconds."""

    beat: Record
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a run at one point in time.

    Attributes:
        ranks: newest heartbeats by rank.
        history: training losses, throughput and evaluations by step.
        restarts: restarts of the latest launch, as records with the keys why, step, kind and from.
        config: resolved config.
        started: start time of the latest launch; None if unknown.
        is_over: whether the launch has ended and its outcome is final.
        samples: the model's predictions of masked words in the evaluation text.
        message: error that ended the last session; empty if there is none.
        hint: how to fix this error; empty if there is none.
    """

    status: RunStatus
    ranks: dict[int, RankView]
    history: RunHistory
    restarts: list[Record]
    config: Record
    started: datetime | None
    is_over: bool
    samples: Samples
    message: str
    hint: str

    @property
    def beat(self) -> Record:
        """Newest heartbeat of rank 0."""
        return self.ranks[0].beat if 0 in self.ranks else {}


@dataclass(slots=True)
class RunReader:
    """Reader of a run directory that reads only new content."""

    folder: Path
    history: RunHistory = field(init=False)
    _tail: MetricsTail = field(init=False)
    _evaluations: list[Record] = field(init=False)

    def __post_init__(self) -> None:
        path = self.folder / METRICS
        self._tail = MetricsTail(path)
        self._tail.skip_existing()  # first: later lines may be read twice, but none is missed
        self.history = RunHistory.read(path, "step")
        self._evaluations = self.history.evaluations()
        self._tail.after_step = self.history.last or -1

    def read(self) -> Snapshot:
        """Read new content of the files and return the current state."""
        now = datetime.now(UTC)
        self._read_metrics()
        config, manifest = read_json(self.folder / RESOLVED), read_json(self.folder / MANIFEST)
        outcome = read_outcome(self.folder)
        return Snapshot(
            status=read_status(self.folder, now, History(evaluations=self._evaluations)),
            ranks=self._read_ranks(_num_ranks(config), now),
            history=self.history,
            restarts=get_records(manifest, "restarts"),
            config=config,
            started=_parse_time(manifest.get("started_utc")),
            is_over=self._is_over(manifest),
            samples=parse_samples(read_json(self.folder / SAMPLES)),
            message=failure_reason(outcome),
            hint=str(outcome.get("hint", "")),
        )

    def _read_metrics(self) -> None:
        for row in self._tail.read_new():
            self.history.add(row, row["step"])
            if any(name.startswith(EVAL) for name in row):
                self._evaluations.append(row)

    def _read_ranks(self, num_ranks: float, now: datetime) -> dict[int, RankView]:
        ranks = [rank for rank in ranks_with_heartbeat(self.folder)[:MAX_RANKS] if rank < num_ranks]
        beats = {rank: last_heartbeat(self.folder, rank) for rank in ranks}
        return {rank: RankView(beat, compute_heartbeat_age_s(beat, now)) for rank, beat in beats.items()}

    def _is_over(self, manifest: Record) -> bool:
        """Return whether the latest launch has ended, so that its outcome is final.

        The launcher may still restart a session that failed, or another launch may be checking the run before
        it resumes: the outcome file is then from the previous session.
        """
        if is_locked(self.folder):
            return False
        try:
            age_s = time.time() - (self.folder / OUTCOME).stat().st_mtime
        except OSError:
            return False
        return age_s > OUTCOME_FINAL_AFTER_S or not _process_exists(manifest.get("launcher_pid"))


def _num_ranks(config: Record) -> float:
    """Return the number of ranks of the latest launch, or infinity if it is unknown.

    Heartbeats of higher ranks are from an earlier launch with more ranks.
    """
    section = config.get("distributed")
    values = section if isinstance(section, dict) else {}
    per_node, nodes = values.get("nproc_per_node"), values.get("nnodes")
    return per_node * nodes if isinstance(per_node, int) and isinstance(nodes, int) else math.inf


def _process_exists(pid: Any) -> bool:
    return isinstance(pid, int) and 0 < pid < 2**22 and psutil.pid_exists(pid)


def _parse_time(text: Any) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None
