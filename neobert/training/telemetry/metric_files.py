"""`training.csv`, `val.csv` and `metrics.json`: the content of `metrics.jsonl` for spreadsheets and scripts.

Written from `metrics.jsonl` at the end of every session, including failed ones, in constant memory. Columns
have the names of `metrics.jsonl`; null becomes an empty cell.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from neobert.atomic_write import open_replacement, write_atomically
from neobert.metric_names import EVAL, EVAL_LOSS, PACE, TRAIN_LOSS
from neobert.runfiles.attempt import is_replaced
from neobert.runfiles.checkpoint.state import read_config
from neobert.runfiles.json_values import is_count, is_number
from neobert.runfiles.run_dir import METRICS
from neobert.tasks.specs import known_metrics
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.jsonl_writer import Row, iter_rows, keep_rows

log = logging.getLogger(__name__)

TRAINING, VALIDATION, SUMMARY = "training.csv", "val.csv", "metrics.json"
SCHEMA_VERSION = 1
# A row is of training, of an evaluation, or of both: these names show which, and to which of them other
# columns belong.
EVALUATED = (EVAL, "time/evaluation_")
IS_HIGHER_BETTER = {
    TRAIN_LOSS: False,
    PACE: True,
    "perf/mfu": True,
    **{name: metric.is_higher_better for name, metric in known_metrics().items()},
}


def write_metric_files(run_dir: Path) -> None:
    """Write the three files from metrics.jsonl, unless a later launch has taken over.

    An `OSError` is logged and does not fail the run.
    """
    if is_replaced(run_dir):
        return
    source = run_dir / METRICS
    try:
        columns, summary = _collect_columns_and_summary(iter_rows(source))
        if columns[TRAIN_LOSS]:
            _write_csv(run_dir / TRAINING, source, TRAIN_LOSS, list(columns[TRAIN_LOSS]))
        if columns[EVAL_LOSS]:
            _write_csv(run_dir / VALIDATION, source, EVAL_LOSS, list(columns[EVAL_LOSS]))
        if summary["metrics"]:
            write_atomically(run_dir / SUMMARY, json.dumps(summary, indent=2).encode() + b"\n")
    except OSError as error:
        log.warning("%s, %s and %s could not be written: %s", TRAINING, VALIDATION, SUMMARY, error)


def _collect_columns_and_summary(rows: Iterator[Row]) -> tuple[dict[str, dict[str, None]], dict[str, Any]]:
    """Return the columns of each table (training, validation) in order of appearance, and the summary."""
    columns: dict[str, dict[str, None]] = {TRAIN_LOSS: {}, EVAL_LOSS: {}}
    metrics: dict[str, dict[str, float]] = {}
    last_step = 0
    for row in rows:
        step = row.get("step")
        if not is_count(step):
            continue
        last_step = step
        for mark in (mark for mark in columns if mark in row):
            columns[mark] |= dict.fromkeys(name for name in row if _table_name(name) == mark)
        for name, value in row.items():
            if name != "step" and is_number(value):
                _update_summary(metrics.setdefault(name, {}), name, value, step)
    return columns, {"schema_version": SCHEMA_VERSION, "step": last_step, "metrics": metrics}


def _table_name(name: str) -> str | None:
    if name == "step":
        return None
    return EVAL_LOSS if name.startswith(EVALUATED) else TRAIN_LOSS


def _update_summary(metric: dict[str, float], name: str, value: float, step: int) -> None:
    metric |= {"last": value, "last_step": step}
    if name not in IS_HIGHER_BETTER:
        return
    sign = 1 if IS_HIGHER_BETTER[name] else -1
    if "best" not in metric or sign * value > sign * metric["best"]:
        metric |= {"best": value, "best_step": step}


def _write_csv(path: Path, source: Path, required_column: str, columns: list[str]) -> None:
    with open_replacement(path) as file, TextIOWrapper(file, "utf-8", newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["step", *columns])
        for row in iter_rows(source):
            if required_column in row and is_count(row.get("step")):
                cells = (row.get(name) for name in columns)
                table.writerow([row["step"], *(cell if is_number(cell) else None for cell in cells)])


def resume_history(trainer: Trainer) -> None:
    """Truncate metrics.jsonl to the resume step, and warn if lines up to that step are lost."""
    progress = trainer.progress
    last = _trim_metrics(trainer.run_dir, progress.first_open_step)
    if not (progress.resumed_step and progress.is_saved):
        return  # a fresh start, or a checkpoint of another run, whose metrics are there
    # Only the end: the checkpoint names the logging_steps of its own session, not of earlier ones, so a
    # longer gap between rows may be right, and one that was announced stays in the file.
    first, end = max(last, progress.first_step) + 1, progress.first_open_step - 1
    every = read_config(trainer.checkpoints / str(progress.step)).get("trainer", {}).get("logging_steps")
    if is_count(every) and every and end // every * every >= first:
        message = f"steps {first:,} to {end:,} have no metrics: metrics.jsonl has lost lines since the save"
        trainer.state.warn("lost_metrics", message)


def _trim_metrics(run_dir: Path, first_open_step: int) -> int:
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
