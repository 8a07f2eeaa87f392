"""Scores of tasks over seeds. Light: no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from neobert.evaluation.glue.tasks import TASKS, GlueTask, reasons_not_comparable

KIND, VERSION = "neobert-glue", 1


def best_row(task: GlueTask, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return step and metrics of the evaluation with the best first metric; None without any.

    The comparison starts at minus infinity, since a correlation may be negative. The evaluation before the
    first step does not compete.
    """
    best: dict[str, Any] | None = None
    highest = float("-inf")
    for row in rows:
        value = row.get(f"eval/{task.metrics[0]}")
        if not row.get("step") or not isinstance(value, int | float) or not value > highest:
            continue
        highest = float(value)
        best = {"step": row["step"], **{name: row.get(f"eval/{name}") for name in task.metrics}}
    return best


def statistics(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean and sample standard deviation; None where a value is missing, or for a single one."""
    numbers = [value for value in values if value is not None]
    is_whole = len(numbers) == len(values) and numbers
    return {
        "mean": fmean(numbers) if is_whole else None,
        "std": stdev(numbers) if is_whole and len(numbers) > 1 else None,
        "values": list(values),
    }


def task_summary(name: str, files: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize a task.

    Args:
        files: counts of its files, as `prepare_task` returns them.
        runs: finished runs: seed, starts_from, and the metrics of the best evaluation. A warm start names
            its task, and makes the score comparable with warm starts only.
    """
    task = TASKS[name]
    reasons = reasons_not_comparable(task, files["train"]["rows"], files["dev"]["rows"])
    scores = [_score(task, run["metrics"]) for run in runs]
    return {
        "score": statistics(scores),
        "metrics": {metric: statistics([run["metrics"][metric] for run in runs]) for metric in task.metrics},
        "starts_from": sorted({run["starts_from"] for run in runs}),
        "not_comparable": reasons,
        "files": dict(files),
        "runs": [dict(run) for run in runs],
    }


def _score(task: GlueTask, metrics: Mapping[str, Any]) -> float | None:
    values = [metrics[name] for name in task.metrics]
    return None if None in values else fmean(values)


def average(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Average the tasks' mean scores: over all of them, and without WNLI and SNLI as papers do."""
    means = {name: summary["score"]["mean"] for name, summary in tasks.items()}
    usual = [value for name, value in means.items() if name not in ("wnli", "snli")]
    return {
        "tasks": list(means),
        "all": None if None in means.values() or not means else fmean(means.values()),
        "without_wnli_and_snli": None if None in usual or not usual else fmean(usual),
        "not_comparable": sorted(name for name, summary in tasks.items() if summary["not_comparable"]),
    }
