"""Statistics of task scores over seeds. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from neobert.evaluation.glue.settings import WARM
from neobert.evaluation.glue.task import GlueTask, reasons_not_comparable
from neobert.evaluation.glue.tasks import SUITES, TASKS
from neobert.runfiles.evaluation_report import ReportFigure, summary_json

KIND, SCHEMA_VERSION = "neobert-glue", 2


def best_evaluation(task: GlueTask, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return step and metrics of the evaluation with the best first metric, or None if none has a value.

    The evaluation before the first step is ignored. Negative values are valid, since a correlation may be
    negative.
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
    """Return mean, sample standard deviation and values.

    Mean and deviation are None if a value is missing; the deviation is also None for a single value.
    """
    numbers = [value for value in values if value is not None]
    is_whole = len(numbers) == len(values) and numbers
    return {
        "mean": fmean(numbers) if is_whole else None,
        "std": stdev(numbers) if is_whole and len(numbers) > 1 else None,
        "values": list(values),
    }


def task_summary(name: str, files: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize a task: statistics of score and metrics over its runs, its files, why it is not comparable.

    Args:
        files: counts of its files, as `prepare_task` returns them.
        runs: finished runs: seed, starts_from, and the metrics of the best evaluation. The score of a
            warm start is comparable only with scores that start from the same task.
    """
    task = TASKS[name]
    reasons = reasons_not_comparable(task, files["train"]["rows"], files["dev"]["rows"])
    scores = [_mean_or_none([run["metrics"][metric] for metric in task.metrics]) for run in runs]
    return {
        "score": statistics(scores),
        "metrics": {metric: statistics([run["metrics"][metric] for run in runs]) for metric in task.metrics},
        "starts_from": sorted({run["starts_from"] for run in runs}),
        "not_comparable": reasons,
        "files": dict(files),
        "runs": [dict(run) for run in runs],
    }


def averages(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean score of all tasks and of each suite, and the tasks that are not comparable.

    A mean is None if a score is missing. A suite is omitted if `tasks` has no averaged task that
    belongs to it alone (RTE belongs to two suites).
    """
    means = {name: summary["score"]["mean"] for name, summary in tasks.items()}
    return {
        "all": _mean_or_none(list(means.values())),
        "suites": {
            suite.name: {
                "mean": _mean_or_none([means[name] for name in suite.averaged if name in means]),
                "tasks": [name for name in suite.averaged if name in means],
                "of": len(suite.averaged),
            }
            for suite in SUITES
            if not means.keys().isdisjoint(suite.own_tasks)
        },
        "not_comparable": sorted(name for name, summary in tasks.items() if summary["not_comparable"]),
    }


def metric_figures(tasks: Mapping[str, Mapping[str, Any]]) -> list[ReportFigure]:
    """Return a figure for every metric of every task: mean and standard deviation over the runs."""
    return [
        ReportFigure(
            name=name,
            metric=metric,
            value=values["mean"],
            std=values["std"],
            seeds=len(task["runs"]),
            starts_from=", ".join(task["starts_from"]),
        )
        for name, task in tasks.items()
        for metric, values in task["metrics"].items()
    ]


def report_notes(tasks: Mapping[str, Mapping[str, Any]], missing: Sequence[str]) -> list[str]:
    """Return notes about comparability, development texts in the training set, and unfinished tasks."""
    reasons = [
        f"{name}: not comparable with published scores: {reason}"
        for name, task in tasks.items()
        for reason in task["not_comparable"]
    ]
    copies = [
        f"{name}: the training set contains {copies:,} of {task['files']['dev']['rows']:,} development texts"
        for name, task in tasks.items()
        if (copies := task["files"]["dev"]["in_train"])
    ]
    return reasons + copies + ([f"not finished: {', '.join(missing)}"] if missing else [])


HOW_SCORED = "best evaluation of each run on the development set; mean and standard deviation over the seeds"
WARM_START = "scores with a warm start are comparable only if they start from the same task"


def suite_summary(
    tasks: Mapping[str, Mapping[str, Any]], missing: Sequence[str], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return figures and notes of an evaluation for model cards. `overrides`: the values of `--set`."""
    is_warm = any(start.endswith(WARM) for task in tasks.values() for start in task["starts_from"])
    changed = [f"settings other than the default recipe: {', '.join(overrides)}"] if overrides else []
    stated = [HOW_SCORED, *changed, *([WARM_START] if is_warm else []), *report_notes(tasks, missing)]
    return summary_json("GLUE and SuperGLUE", metric_figures(tasks), stated)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None
