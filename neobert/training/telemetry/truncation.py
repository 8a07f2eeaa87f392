"""Truncation of metrics and heartbeats to the step that a run resumes from."""

from __future__ import annotations

from pathlib import Path

from neobert.training.state.progress import Progress
from neobert.training.telemetry.jsonl_writer import Row, iter_rows, keep_rows, rotated

METRICS = "metrics.jsonl"


def heartbeat_path(run_dir: Path, rank: int) -> Path:
    """Name a rank's heartbeat."""
    return run_dir / f"heartbeat_rank{rank}.jsonl"


def trim_metrics(run_dir: Path, progress: Progress) -> None:
    """Drop the lines of steps that will be done again, and of the one whose line is still open."""
    keep_rows(run_dir / METRICS, lambda row: _step(row) < first_open_step(progress))


def trim_heartbeat(path: Path, resumed_step: int | None) -> int:
    """Drop the beats of steps that will be done again; return the number that the next beat gets.

    None stands for a fresh start, which keeps none.
    """
    files = (rotated(path), path)
    last_seq = max((row.get("seq", -1) for file in files for row in iter_rows(file)), default=-1)
    for file in files:
        keep_rows(file, lambda row: resumed_step is not None and _step(row) <= resumed_step)
    return last_seq + 1


def first_open_step(progress: Progress) -> int:
    """Return the step of the next line of metrics."""
    return progress.step + (progress.row is None)


def _step(row: Row) -> int:
    """Return a line's step; a beat from before there was one belongs to no step that is done again."""
    step = row.get("step")
    return -1 if step is None else int(step)
