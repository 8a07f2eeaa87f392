"""What a run has told so far, cut back to where it goes on from: no step twice, none missing."""

from __future__ import annotations

from pathlib import Path

from neobert.training.journal import Row, keep_rows, read_rows
from neobert.training.progress import Progress

METRICS = "metrics.jsonl"


def heartbeat_path(run_dir: Path, rank: int) -> Path:
    """Name a rank's heartbeat."""
    return run_dir / f"heartbeat_rank{rank}.jsonl"


def trim_metrics(run_dir: Path, progress: Progress) -> None:
    """Drop the lines of steps that will be done again, and of the one whose line is still open."""
    keep_rows(run_dir / METRICS, lambda row: _step(row) < _first_open_step(progress))


def trim_heartbeat(path: Path, progress: Progress) -> int:
    """Drop the beats of steps that will be done again; return the number that the next beat gets."""
    last_seq = max((row.get("seq", -1) for row in read_rows(path)), default=-1)
    keep_rows(path, lambda row: progress.resumed_step is not None and _step(row) <= progress.step)
    return last_seq + 1


def _first_open_step(progress: Progress) -> int:
    return progress.step + (progress.row is None)


def _step(row: Row) -> int:
    return int(row.get("step", -1))
