"""Revision of a model, sizes of mteb's tasks, and averages of their scores. Does not import mteb."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from statistics import fmean
from typing import Any

from neobert.runfiles.evaluation_report import ReportFigure


def revision_digest(identity: Mapping[str, Any], prefixes: Sequence[str]) -> str:
    """Return a digest of everything that affects scores; mteb reruns tasks whose revision differs."""
    content = json.dumps([identity, list(prefixes)], sort_keys=True)
    return sha256(content.encode()).hexdigest()[:32]


def estimated_seconds(tasks: Iterable[Any], rate: float) -> dict[str, float | None]:
    """Estimate the seconds of encoding by task, from mteb's published sizes; None if a size is unknown."""
    sizes = {task.metadata.name: _num_task_characters(task) for task in tasks}
    return {name: None if size is None else round(size / rate, 1) for name, size in sizes.items()}


def _num_task_characters(task: Any) -> int | None:
    statistics = task.metadata.descriptive_stats or {}
    found = [num_characters(statistics[split]) for split in task.metadata.eval_splits if split in statistics]
    return sum(found) if found and all(found) else None


def num_characters(statistics: Mapping[str, Any]) -> int:
    """Return the number of characters in the statistics of a split; 0 if they state none."""
    own = statistics.get("number_of_characters")
    if isinstance(own, int | float):
        return int(own)
    nested = (value for value in statistics.values() if isinstance(value, dict))
    total = statistics.get("total_text_length")
    return int(total) if isinstance(total, int | float) else sum(map(num_characters, nested))


def averages(scores: Mapping[str, float], types: Mapping[str, str]) -> dict[str, Any]:
    """Return scores by task, means by type, means of tasks and types, and the tasks without a score.

    A mean is None if it has no scores to average.
    """
    by_type: dict[str, list[float]] = {}
    for name, score in scores.items():
        by_type.setdefault(types[name], []).append(score)
    means = {name: fmean(values) for name, values in sorted(by_type.items())}
    return {
        "scores": dict(sorted(scores.items())),
        "types": means,
        "mean_of_tasks": fmean(scores.values()) if scores else None,
        "mean_of_types": fmean(means.values()) if means else None,
        "missing": sorted(types.keys() - scores.keys()),
    }


def report_figures(averages: Mapping[str, Any]) -> list[ReportFigure]:
    """Return the averages by type, over types and over tasks, then the main score of every task."""
    means = {
        **{f"mean of {name}": value for name, value in averages["types"].items()},
        "mean of types": averages["mean_of_types"],
        "mean of tasks": averages["mean_of_tasks"],
    }
    values = {**means, **averages["scores"]}
    return [ReportFigure(name=name, metric="main score", value=value) for name, value in values.items()]


def missing_note(averages: Mapping[str, Any]) -> list[str]:
    """Return a note that names the tasks without a score; empty if all have one."""
    return [f"without a score: {', '.join(averages['missing'])}"] if averages["missing"] else []
