"""Data of a report on one run, read from its run directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.htmlreport.reader import (
    PIXELS,
    History,
    RankData,
    Series,
    effective_launches,
    read_document,
    read_history,
    read_ranks,
    saved_steps,
)
from launcher.rundir.directory import is_alive
from launcher.rundir.records import Record, get_records
from neobert.config.canonical import flatten
from neobert.runfiles.run_dir import MANIFEST, OUTCOME, PROVENANCE, RESOLVED
from neobert.runfiles.samples import FILE_NAME as SAMPLES
from neobert.runfiles.samples import Samples, parse_samples
from neobert.tasks.metric import Metric
from neobert.tasks.specs import SPECS

CHECKPOINT_NAME = re.compile(r"checkpoint (\d{1,18})")
PER_RANK = {"gpu": "memory/gpu_rank{}", "host": "memory/host_rank{}"}


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A mark on the time line; `kind` is checkpoint, evaluation, failure or resume."""

    kind: str
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Data of one run; values from missing or damaged files are empty.

    Attributes:
        config: resolved values by dotted key.
        launches: entries of the manifest, oldest first; all but the last have an `outcome`.
        num_ranks: number of ranks with a heartbeat; `ranks` has only the first `MAX_RANKS` of them.
        is_alive: whether the trainer runs; None if it was started on another host.
    """

    name: str
    folder: Path
    history: History
    ranks: list[RankData]
    num_ranks: int
    config: Mapping[str, Any]
    provenance: Record
    launches: list[Record]
    preflight: Record
    facts: Record
    outcome: Record
    saved: set[int]
    samples: Samples
    is_alive: bool | None

    @property
    def series(self) -> dict[str, Series]:
        """Chart lines by metric name, including the memory of each rank in GiB."""
        of_ranks = {
            PER_RANK[kind].format(rank.rank): series
            for rank in self.ranks
            for kind, series in rank.memory.items()
        }
        return self.history.series | of_ranks

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task; empty for a task that this version does not know."""
        task = self.config.get("task")
        return SPECS[task].metrics if isinstance(task, str) and task in SPECS else ()

    @property
    def last_step(self) -> int:
        """Highest step of the newest metrics and heartbeats; 0 if there are none."""
        steps = [self.history.last.get("step"), *(rank.last.get("step") for rank in self.ranks)]
        return max((step for step in steps if isinstance(step, int)), default=0)

    @property
    def last_launch(self) -> Record:
        """Manifest entry of the newest launch; empty if there is no manifest."""
        return self.launches[-1] if self.launches else {}

    def events(self) -> list[TimelineEvent]:
        """Return the marks on the time line by step; at most one checkpoint and evaluation per pixel."""
        marks = {
            (event.kind, event.step): event for event in self._iterate_events() if 0 <= event.step < 2**63
        }
        return _thin_out_events(sorted(marks.values(), key=lambda event: event.step), self.last_step)

    def _iterate_events(self) -> Iterator[TimelineEvent]:
        for step in self.history.evaluations:
            yield TimelineEvent("evaluation", step, f"evaluation at step {step:,}")
        for step in self.saved.union(*(rank.checkpoints for rank in self.ranks)):
            kept = "on disk" if step in self.saved else "removed since"
            yield TimelineEvent("checkpoint", step, f"checkpoint {step:,} ({kept})")
        for rank in self.ranks[:1]:
            for step, when in rank.sessions.items():
                yield TimelineEvent("resume", step, f"resumed from step {step:,} at {when}")
        for restart in self.restarts():
            yield from _restart_events(restart)
        failed_step = self.outcome.get("step")
        if self.outcome.get("status") == "failed" and isinstance(failed_step, int):
            yield TimelineEvent(
                "failure", failed_step, f"step {failed_step:,}: {self.outcome.get('message', '')}"
            )

    def restarts(self) -> list[Record]:
        """Return the restarts of all launches, oldest first."""
        return [restart for launch in self.launches for restart in get_records(launch, "restarts")]


def read_run(folder: Path) -> RunRecord:
    """Read a run directory. Nothing in it is executed, and no link in it is followed."""
    manifest = read_document(folder, MANIFEST)
    earlier = get_records(manifest, "earlier")
    launches = [*earlier, manifest] if manifest else earlier
    ranks, num_ranks = read_ranks(folder)
    return RunRecord(
        name=folder.absolute().name,
        folder=folder,
        history=read_history(folder, effective_launches(launches, max(num_ranks, 1))),
        ranks=ranks,
        num_ranks=num_ranks,
        config=flatten(read_document(folder, RESOLVED)),
        provenance=read_document(folder, PROVENANCE),
        launches=launches,
        preflight=read_document(folder, "preflight.json"),
        facts=read_document(folder, "facts.json"),
        outcome=read_document(folder, OUTCOME),
        saved=saved_steps(folder),
        samples=parse_samples(read_document(folder, SAMPLES)),
        is_alive=is_alive(manifest),
    )


def _restart_events(restart: Record) -> Iterator[TimelineEvent]:
    step, why, source = restart.get("step"), str(restart.get("why", "")), str(restart.get("from", ""))
    if isinstance(step, int):
        yield TimelineEvent("failure", step, f"step {step:,}: {why}; restarted from {source}")
    if match := CHECKPOINT_NAME.fullmatch(source):
        yield TimelineEvent(
            "resume", int(match[1]), f"restarted from {source} at {restart.get('ts_utc', '')}: {why}"
        )


def _thin_out_events(events: Iterable[TimelineEvent], last_step: int) -> list[TimelineEvent]:
    """Keep one checkpoint and one evaluation mark per pixel, and all failures and resumes."""
    kept: dict[tuple[str, int], TimelineEvent] = {}
    for event in events:
        is_rare = event.kind in ("failure", "resume")
        pixel = event.step if is_rare else event.step * PIXELS // (last_step + 1)
        kept[event.kind, pixel] = event
    return list(kept.values())
