"""Results of the finished jobs of `glue_small.py`: scores by arm and task, with their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurement import write_measurement
from trials import SEEDS, result

from neobert.evaluation.glue.settings import BATCH_SIZE, EVALUATIONS_PER_EPOCH, PATIENCE
from neobert.evaluation.glue.summary import averages, notes, task_summary
from neobert.evaluation.glue.tasks import TASKS
from neobert.plurals import counted

ARMS, SIDES = ("ours", "random", "peer"), ("ours", "peer")
SAME_FOR_ALL = {
    "batch": BATCH_SIZE,
    "optimizer": "AdamW, betas 0.9 and 0.98, weight decay 0.01, clipping at 1",
    "schedule": "6 % warm-up, linear to zero",
    "evaluations": f"{EVALUATIONS_PER_EPOCH} per epoch; a run ends after {PATIENCE} without a better one",
    "score": "the best evaluation, on the development set",
    "classifier": "mean pooling, dropout 0.1",
    "rate": "the one of `rates` whose first seed has the best first metric, by arm and task",
}


def job_name(arm: str, task: str, rate: float, seed: int) -> str:
    return f"{arm}-{task}-lr-{rate:g}-seed-{seed}"


def best_rate(results: Path, arm: str, task: str, rates: Sequence[float]) -> float | None:
    """Return the rate with the best first metric of the first seed; None before all of them have ended."""
    metric = TASKS[task].metrics[0]
    runs = [result(results, job_name(arm, task, rate, SEEDS[0])) for rate in rates]
    ended = [run["metrics"][metric] for run in runs if run is not None]
    scores = [-math.inf if score is None else score for score in ended]
    return rates[scores.index(max(scores))] if len(ended) == len(rates) else None


def task_of(
    results: Path, arm: str, task: str, rates: Sequence[float], files: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Summarize the runs at the best rate; None before a rate is chosen."""
    rate = best_rate(results, arm, task, rates)
    if rate is None:
        return None
    found = [result(results, job_name(arm, task, rate, seed)) for seed in SEEDS]
    first = {f"{each:g}": result(results, job_name(arm, task, each, SEEDS[0])) for each in rates}
    metrics = {each: run["metrics"] for each, run in first.items() if run is not None}
    runs = [run for run in found if run is not None]
    return {"rate": rate, "first_seed_by_rate": metrics, **task_summary(task, files, runs)}


def arm_of(
    results: Path, arm: str, rates: Sequence[float], files: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Summarize an arm: tasks, averages and BLiMP."""
    found = {name: task_of(results, arm, name, rates, each["files"]) for name, each in files.items()}
    tasks = {name: each for name, each in found.items() if each is not None}
    return {"tasks": tasks, "averages": averages(tasks), "blimp": result(results, f"{arm}-blimp")}


def missing_of(arms: Mapping[str, Mapping[str, Any]], files: Mapping[str, Any]) -> Iterator[str]:
    """Yield what has not ended."""
    for arm, found in arms.items():
        for task in files:
            done = len(found["tasks"].get(task, {}).get("runs", ()))
            if done < len(SEEDS):
                yield f"{arm}, {task}: {done} of {counted(len(SEEDS), 'seed')}"
        if found["blimp"] is None:
            yield f"{arm}, blimp"


def report(
    results: Path, output: Path | None, rates: Sequence[float], files: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return a table, and write glue-small.json; incomplete as long as a job is missing."""
    arms = {arm: arm_of(results, arm, rates, files) for arm in ARMS}
    missing = list(missing_of(arms, files))
    shown_table = "\n".join([*table(arms, files), *(f"missing: {each}" for each in missing)])
    if output is None:
        return shown_table
    mine, theirs = (arms[side]["averages"]["all"] for side in SIDES)
    detail = {
        "pretraining": {side: result(results, f"pretrain-{side}") for side in SIDES},
        "fine_tuning": {**SAME_FOR_ALL, "rates": list(rates), "seeds": len(SEEDS)},
        "not_comparable": notes(arms["ours"]["tasks"], ()),
        "arms": arms,
        "missing": missing,
    }
    value = None if mine is None or theirs is None else round(100 * (mine - theirs), 2)
    unit = "points of the mean of the tasks above the peer"
    write_measurement(output / "glue-small.json", value, unit, 0.0, detail, is_complete=not missing)
    return shown_table


def table(arms: Mapping[str, Mapping[str, Any]], files: Mapping[str, Any]) -> Iterator[str]:
    """Yield rows of means and deviations, in percent."""
    yield f"{'':8}" + "".join(f"{arm:>16}" for arm in arms)
    for task in files:
        scores = [found["tasks"].get(task, {}).get("score") for found in arms.values()]
        yield f"{task:8}" + "".join(f"{shown(score):>16}" for score in scores)
    means = [{"mean": found["averages"]["all"], "std": None} for found in arms.values()]
    yield f"{'mean':8}" + "".join(f"{shown(mean):>16}" for mean in means)
    pairs = [{"mean": (found["blimp"] or {}).get("accuracy"), "std": None} for found in arms.values()]
    yield f"{'blimp':8}" + "".join(f"{shown(pair):>16}" for pair in pairs)


def shown(score: Mapping[str, Any] | None) -> str:
    if score is None or score["mean"] is None:
        return "-"
    return f"{100 * score['mean']:.1f}" + ("" if score["std"] is None else f" ± {100 * score['std']:.1f}")
