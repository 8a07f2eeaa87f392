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
T_95 = {3: 4.303, 6: 2.571}
"""Student's t for a 95 % interval of the mean, by the number of seeds: one degree of freedom less."""
INTERVALS = "95 %, Student's t over the seeds; of ratios, on their logarithms"

START_S = 60.0
"""Of a process on a GPU until its first step, at most: imports, text, compilation."""
ROW_LENGTH, SHARE = 512, 0.3
ROWS = {"53M": 64, "245M": 64, "tiny": 2}
"""In a step of either side."""
STEP_S = {"53M": 0.034, "245M": 0.11, "tiny": 0.034}
"""Of this trainer, at most."""
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
    """A process on one GPU: one run, or runs of this trainer that share a compiled step.

    Attributes:
        name: of its files in the folder of results.
        command: a program that appends a line of JSON for each run to the file named last.
        most_s: not started with less time left: its start and its longest run.
        recipes: of this trainer, one run for each, in a file whose name is added to the command.
        run_s: of its longest recipe; none starts with less time left.
        figure: key of a run, for the terminal.
    """

    name: str
    command: tuple[str, ...]
    most_s: float
    recipes: tuple[Mapping[str, Any], ...] = ()
    run_s: float = 0.0
    figure: str = "loss"

    @property
    def num_runs(self) -> int:
        return max(1, len(self.recipes))


def peer(work: Path, title: str, recipes: Iterable[Mapping[str, Any]], *, size: str) -> Trial:
    """Describe runs of the peer in one process; keys as in `peer_trainer.BASE`."""
    chosen = tuple({"share": SHARE, **recipe} for recipe in recipes)
    options = ("--size", size, "--rows", str(ROWS[size]))
    run_s = PEER_RESET_S + PEER_STEP_S[size] * max(recipe["steps"] for recipe in chosen)
    command = (str(HERE / "peer_trainer.py"), str(work), *options, "--output")
    return Trial(unique(title, options, chosen), command, START_S + run_s, chosen, run_s)


def ours(
    work: Path,
    title: str,
    recipes: Iterable[Mapping[str, Any]],
    *,
    size: str,
    config: Mapping[str, Any] = CONFIG,
    rows: int | None = None,
) -> Trial:
    """Describe runs of this trainer, which differ from the recipe in the given keys.

    rows: in a step; default: `ROWS`.
    """
    chosen = tuple({**RECIPE, **recipe} for recipe in recipes)
    rows = rows or ROWS[size]
    options = ("--size", size, "--rows", str(rows), "--config", json.dumps(config, sort_keys=True))
    run_s = 6.0 + STEP_S[size] * rows / ROWS[size] * max(recipe["steps"] for recipe in chosen)
    command = (str(HERE / "recipe_screen.py"), str(work), *options, "--output")
    return Trial(unique(title, options, chosen), command, START_S + run_s, chosen, run_s)


def unique(title: str, options: Sequence[str], recipes: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a name for files, which a run of another recipe, size or number of steps does not share."""
    asked = json.dumps([options, recipes], sort_keys=True)
    return f"{title}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"


def result_path(results: Path, name: str) -> Path:
    return results / f"{name}.jsonl"


def result(results: Path, name: str) -> Run | None:
    """Return the first finished run of a trial."""
    return next(iter(runs_of(results, name)), None)


def runs_of(results: Path, name: str) -> list[Run]:
    """Return the finished runs of a trial. A line without an end was cut short, and does not count."""
    path = result_path(results, name)
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def finite(run: Run, key: str = "loss") -> float | None:
    """Return a figure of a run, such as its held-out loss; None if it diverged."""
    figure = run.get(key)
    return figure if figure is not None and math.isfinite(figure) else None


def interval(values: Sequence[float]) -> list[float]:
    """Return the ends of the 95 % interval of the mean of values, one of each seed."""
    if len(values) not in T_95:
        raise ValueError(f"{len(values)} values: the interval is for {' or '.join(map(str, T_95))} seeds")
    half = T_95[len(values)] * stdev(values) / math.sqrt(len(values))
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


def summary(runs: Sequence[Run], seeds: range = SEEDS, key: str = "loss") -> dict[str, Any] | None:
    """Return means, intervals and the runs of all seeds; None before all are there, or if one diverged.

    key: of the loss to compare.
    """
    if len(runs) < len(seeds) or None in map(finite, runs):
        return None
    losses, seconds = ([run[name] for run in runs] for name in (key, "seconds"))
    return {
        "seeds": list(seeds),
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
