"""metrics.jsonl at the start of a session: its rows are those of the run up to the resume step."""

from __future__ import annotations

from pathlib import Path

from neobert.runfiles.checkpoint.state import read_config
from neobert.runfiles.json_values import is_count
from neobert.runfiles.run_dir import METRICS
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import Row, keep_rows


def resume_history(trainer: Trainer) -> None:
    """Truncate metrics.jsonl to the resume step, and warn if lines up to that step are lost."""
    progress = trainer.progress
    last = trim_metrics(trainer.run_dir, progress.first_open_step)
    if not (progress.resumed_step and progress.is_saved):
        return  # a fresh start, or a checkpoint of another run, whose metrics are there
    # Only the end: the checkpoint names the logging_steps of its own session, not of earlier ones, so a
    # longer gap between rows may be right, and one that was announced stays in the file.
    first, end = max(last, progress.first_step) + 1, progress.first_open_step - 1
    every = read_config(trainer.checkpoints / str(progress.step)).get("trainer", {}).get("logging_steps")
    if is_count(every) and every and end // every * every >= first:
        message = f"steps {first:,} to {end:,} have no metrics: metrics.jsonl has lost lines since the save"
        trainer.state.warn("lost_metrics", message)


def trim_metrics(run_dir: Path, first_open_step: int) -> int:
    """Truncate metrics.jsonl before `first_open_step`, the first step whose line is written again.

    Rows without a step, and second rows of a step, are not the run's and are dropped too. Returns the last
    step that has a row, or -1.
    """
    kept: set[int] = set()

    def is_kept(row: Row) -> bool:
        step = row.get("step")
        if not is_count(step) or step >= first_open_step or step in kept:
            return False
        kept.add(step)
        return True

    keep_rows(run_dir / METRICS, is_kept)
    return max(kept, default=-1)
