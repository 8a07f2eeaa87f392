"""Runs of this trainer and of `transformers.Trainer` on the same text, and their results.

`time_to_loss.py` compares them; `trial_runner.py` runs what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).parent
Run = Mapping[str, Any]
"""A line of results: loss, seconds and tokens of a run, with what it was a run of."""

SEEDS = range(3)
T_95 = 4.303
"""Student's t for a 95 % interval of the mean of three seeds."""
INTERVALS = "95 %, Student's t over the seeds; of ratios, on their logarithms"

START_S = 60.0
"""Of a process on a GPU until its first step, at most: imports, text, compilation."""
SHARE = 0.3
ROWS = {"53M": 64, "245M": 64, "tiny": 2}
"""In a step of either side."""
STEP_S, RESET_S = {"53M": 0.034, "245M": 0.11, "tiny": 0.034}, 6.0
"""Of this trainer, at most; and before its first step in each run."""
PEER_STEP_S, PEER_RESET_S = {"53M": 0.05, "245M": 0.16, "tiny": 0.05}, 25.0
"""Of the peer, at most; and before its first step and for its evaluation in each run."""
RECIPE: dict[str, Any] = {
    "init": "scaled",
    "optimizer": "muon",
    "muon_lr": 4e-3,
    "lr": 2e-3,
    "weight_decay": 0.5,
    "shape": "linear",
}
CONFIG: dict[str, dict[str, Any]] = {
    "model": {"embedding_multiplier": 22.6, "intermediate_size": 2016},
    "datacollator": {"mlm_probability": SHARE},
    "trainer": {"cuda_graphs": True},
}
"""The feed-forward width, 1,344, is that of the peer."""
DEFAULT_KERNELS = "fused"
"""The fastest; its packages are those of the extra `fused`."""


@dataclass(frozen=True)
class Trial:
    """A process that trains one recipe after another with the same compiled step.

    Attributes:
        name: of its files in the folder of results.
        command: a program that appends a line of JSON to a file for each recipe of another file.
        run_s: of its longest recipe; none starts with less time left.
        start_s: before its first recipe.
    """

    name: str
    command: tuple[str, ...]
    recipes: tuple[Mapping[str, Any], ...]
    run_s: float
    start_s: float = START_S


def peer(work: Path, title: str, recipes: Iterable[Mapping[str, Any]], *, size: str) -> Trial:
    """Describe runs of the peer; keys as in `peer_trainer.BASE`."""
    chosen = tuple({"share": SHARE, **recipe} for recipe in recipes)
    return trial("peer_trainer.py", work, title, chosen, size, (), (PEER_RESET_S, PEER_STEP_S[size]))


def ours(
    work: Path, title: str, recipes: Iterable[Mapping[str, Any]], *, size: str, config: Mapping[str, Any]
) -> Trial:
    """Describe runs of this trainer, which differ from the recipe in the given keys."""
    chosen = tuple({**RECIPE, **recipe} for recipe in recipes)
    options = ("--config", json.dumps(config, sort_keys=True))
    return trial("recipe_screen.py", work, title, chosen, size, options, (RESET_S, STEP_S[size]))


def trial(
    program: str,
    work: Path,
    title: str,
    recipes: tuple[Mapping[str, Any], ...],
    size: str,
    options: tuple[str, ...],
    prices_s: tuple[float, float],
) -> Trial:
    """Describe a process; prices are those of a run and of each of its steps."""
    options = ("--size", size, "--rows", str(ROWS[size]), *options)
    run_s = prices_s[0] + prices_s[1] * max(recipe["steps"] for recipe in recipes)
    return Trial(unique(title, options, recipes), (str(HERE / program), *options, str(work)), recipes, run_s)


def unique(title: str, options: Sequence[str], recipes: Sequence[Mapping[str, Any]]) -> str:
    """Return a name for files, which a run of another recipe, size or number of steps does not share."""
    asked = json.dumps([options, recipes], sort_keys=True)
    return f"{title}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"


def result_path(results: Path, name: str) -> Path:
    return results / f"{name}.jsonl"


def runs_of(results: Path, name: str) -> list[Run]:
    """Return the finished runs of a trial."""
    path = result_path(results, name)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def finite(run: Run) -> float | None:
    """Return the held-out loss of a run; None if it diverged."""
    loss = run.get("loss")
    return loss if loss is not None and math.isfinite(loss) else None


def interval(values: Sequence[float]) -> list[float]:
    """Return the ends of the 95 % interval of the mean of values, one of each seed."""
    if len(values) != len(SEEDS):
        raise ValueError(f"{len(values)} values: the interval is for {len(SEEDS)} seeds")
    half = T_95 * stdev(values) / math.sqrt(len(values))
    return [fmean(values) - half, fmean(values) + half]


def difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference and its interval. Which seeds make a pair is arbitrary."""
    values = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {"mean": fmean(values), "interval": interval(values)}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the ratio of the geometric means and its interval."""
    logarithms = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return {
        "mean": math.exp(fmean(logarithms)),
        "interval": [math.exp(end) for end in interval(logarithms)],
    }


def summary(runs: Sequence[Run], key: str = "loss") -> dict[str, Any] | None:
    """Return means, intervals and the runs of all seeds; None before all are there, or if one diverged.

    key: of the loss to compare.
    """
    if len(runs) < len(SEEDS) or None in map(finite, runs):
        return None
    losses, seconds = ([run[name] for run in runs] for name in (key, "seconds"))
    return {
        "seeds": list(SEEDS),
        "loss": fmean(losses),
        "loss_interval": interval(losses),
        "seconds": fmean(seconds),
        "seconds_interval": interval(seconds),
        "tokens": fmean(run["tokens"] for run in runs),
        "runs": [{name: value for name, value in run.items() if name != "kernels"} for run in runs],
    }


def column(found: Mapping[str, Any], key: str) -> list[float]:
    """Return a value of each run of a summary."""
    return [run[key] for run in found["runs"]]
