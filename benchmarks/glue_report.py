"""Results of the finished jobs of `glue_small.py`: scores by arm and task, with their limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from measurement import write_measurement
from trials import SEEDS, interval, result

from neobert.evaluation.glue.settings import BATCH_SIZE, EVALUATIONS_PER_EPOCH, PATIENCE
from neobert.evaluation.glue.summary import averages, notes, task_summary
from neobert.evaluation.glue.tasks import TASKS
from neobert.plurals import counted

TASK_NAMES = ("cola", "sst2", "mrpc", "stsb", "rte", "qnli")
ARMS, SIDES, OTHERS = ("ours", "random", "peer"), ("ours", "peer"), ("peer", "random")
FINE_TUNING = {
    "batch": BATCH_SIZE,
    "optimizer": "AdamW, betas 0.9 and 0.98, weight decay 0.01, clipping at 1",
    "schedule": "6 % warm-up, linear to zero",
    "evaluations": f"{EVALUATIONS_PER_EPOCH} per epoch; a run ends after {PATIENCE} without a better one",
    "score": "the best evaluation, on the development set",
    "pooling": "mean, dropout 0.1",
    "classifier": {
        "ours": "dense layer and tanh, drawn by the seed, then a linear layer, drawn too",
        "peer": "transformers': the pretrained prediction head, then a linear layer drawn by the seed",
    },
    "rate": "the one of `rates` whose first seed has the best first metric, by arm and task",
    "intervals": "95 %, Student's t over three seeds of fine-tuning; each side was pretrained once",
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


def scores_of(found: Mapping[str, Any], task: str) -> dict[int, float]:
    """Return the scores of an arm by seed; none where a metric is undefined."""
    summary = found["tasks"].get(task, {"runs": (), "score": {"values": ()}})
    scored = zip(summary["runs"], summary["score"]["values"], strict=True)
    return {run["seed"]: score for run, score in scored if score is not None}


def margin(ours: Mapping[str, Any], other: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, Any] | None:
    """Return how many points an arm is above another one, in the mean of the tasks that both have.

    Only seeds count that all these tasks have on both sides, and three of them have an interval; None if
    there are no such tasks or seeds.
    """
    both = {task: (scores_of(ours, task), scores_of(other, task)) for task in tasks}
    both = {task: sides for task, sides in both.items() if all(sides)}
    seeds = [seed for seed in SEEDS if all(seed in side for sides in both.values() for side in sides)]
    if not both or not seeds:
        return None
    points = [100 * fmean(mine[seed] - theirs[seed] for mine, theirs in both.values()) for seed in seeds]
    ends = interval(points) if len(points) == len(SEEDS) else None
    return {"points": fmean(points), "interval": ends, "tasks": list(both), "seeds": seeds}


def margins(arms: Mapping[str, Mapping[str, Any]], tasks: Iterable[str]) -> dict[str, Any]:
    """Return how far this trainer's arm is above each other one: in all tasks, and in each."""
    chosen = list(tasks)
    return {
        other: {
            "all": margin(arms["ours"], arms[other], chosen),
            "tasks": {task: margin(arms["ours"], arms[other], [task]) for task in chosen},
        }
        for other in OTHERS
    }


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
    """Return a table, and write its figure; incomplete as long as a job is missing."""
    arms = {arm: arm_of(results, arm, rates, files) for arm in ARMS}
    above, missing = margins(arms, files), list(missing_of(arms, files))
    begun = {name: task for found in arms.values() for name, task in found["tasks"].items()}
    not_comparable = notes(begun, ())
    lines = [*table(arms, above["peer"], files), *not_comparable, *(f"missing: {each}" for each in missing)]
    if output is not None:
        detail = {
            "pretraining": {side: result(results, f"pretrain-{side}") for side in SIDES},
            "fine_tuning": {**FINE_TUNING, "rates": list(rates), "seeds": len(SEEDS)},
            "not_comparable": not_comparable,
            "margins": above,
            "arms": arms,
            "missing": missing,
        }
        of_all = above["peer"]["all"]
        value = None if of_all is None else round(of_all["points"], 2)
        unit = "points of the mean of the tasks above the peer"
        write_measurement(output / f"{figure(files)}.json", value, unit, 0.0, detail, is_complete=not missing)
    return "\n".join(lines)


def figure(tasks: Iterable[str]) -> str:
    """Return the name of the measurement: a comparison of other tasks is not the one of all."""
    names = sorted(tasks)
    return "glue-small" if names == sorted(TASK_NAMES) else "-".join(["glue-small", *names])


def table(
    arms: Mapping[str, Mapping[str, Any]], above: Mapping[str, Any], files: Mapping[str, Any]
) -> Iterator[str]:
    """Yield rows of means and deviations, in percent, and of margins above the peer with their intervals."""
    yield f"{'':8}" + "".join(f"{arm:>16}" for arm in arms) + "   ours above peer"
    for task in files:
        scores = [found["tasks"].get(task, {}).get("score") for found in arms.values()]
        yield row(task, scores, above["tasks"][task])
    means = [{"mean": found["averages"]["all"], "std": None} for found in arms.values()]
    yield row("mean", means, above["all"])
    pairs = [{"mean": (found["blimp"] or {}).get("accuracy"), "std": None} for found in arms.values()]
    yield row("blimp", pairs, None)


def row(title: str, scores: Iterable[Mapping[str, Any] | None], above: Mapping[str, Any] | None) -> str:
    return f"{title:8}" + "".join(f"{shown(score):>16}" for score in scores) + f"   {shown_margin(above)}"


def shown(score: Mapping[str, Any] | None) -> str:
    if score is None or score["mean"] is None:
        return "-"
    return f"{100 * score['mean']:.1f}" + ("" if score["std"] is None else f" ± {100 * score['std']:.1f}")


def shown_margin(above: Mapping[str, Any] | None) -> str:
    if above is None:
        return ""
    ends = above["interval"]
    of = counted(len(above["seeds"]), "seed") if ends is None else f"{ends[0]:+.1f} to {ends[1]:+.1f}"
    return f"{above['points']:+.1f} ({of})"
