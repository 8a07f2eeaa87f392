"""Runs of this trainer and of `transformers.Trainer` on the same text, one after another, and their results.

A folder of results has NAME.jsonl, a line for each finished run. Commands add up: one that was stopped
continues where it was, and a trial whose recipe changed has another name.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from launcher.process.child_start import dying_with_parent

HERE = Path(__file__).parent
Run = Mapping[str, Any]
"""A line of results: loss, seconds and tokens of a run, with what it was a run of."""

SEEDS = range(3)
T_95 = 4.303
"""Student's t for a 95 % interval of the mean of three seeds."""
INTERVALS = "95 %, Student's t over the seeds; of ratios, on their logarithms"

SHARE = 0.3
ROWS = {"53M": 64, "245M": 64, "tiny": 2}
"""In a step of either side."""
RECIPE: dict[str, dict[str, Any]] = {
    "model": {"init": "scaled", "embedding_multiplier": 22.6, "intermediate_size": 2016},
    "datacollator": {"mlm_probability": SHARE},
    "optimizer": {
        "name": "muon",
        "muon_lr": 4e-3,
        "lr": 2e-3,
        "betas": [0.9, 0.98],
        "weight_decay": 0.5,
        "muon_momentum": 0.95,
        "muon_split": "projections",
    },
    "scheduler": {"name": "linear", "warmup_percent": 10.0, "decay_percent": None, "final_lr_ratio": 0.0},
    "trainer": {"cuda_graphs": True, "gradient_clipping": 1.0},
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
    """

    name: str
    command: tuple[str, ...]
    recipes: tuple[Mapping[str, Any], ...]


def peer(work: Path, title: str, recipes: Iterable[Mapping[str, Any]], *, size: str) -> Trial:
    """Describe runs of the peer; keys as in `peer_trainer.BASE`."""
    chosen = tuple({"share": SHARE, **recipe} for recipe in recipes)
    return trial("peer_trainer.py", work, title, chosen, size, ())


def ours(
    work: Path, title: str, recipes: Iterable[Mapping[str, Any]], *, size: str, config: Mapping[str, Any]
) -> Trial:
    """Describe runs of this trainer: seeds and numbers of steps of one config."""
    options = ("--config", json.dumps(config, sort_keys=True))
    return trial("own_trainer.py", work, title, tuple(recipes), size, options)


def trial(
    program: str,
    work: Path,
    title: str,
    recipes: tuple[Mapping[str, Any], ...],
    size: str,
    options: tuple[str, ...],
) -> Trial:
    options = ("--size", size, "--rows", str(ROWS[size]), *options)
    return Trial(unique(title, options, recipes), (str(HERE / program), *options, str(work)), recipes)


def unique(title: str, options: Sequence[str], recipes: Sequence[Mapping[str, Any]]) -> str:
    """Return a name for files, which a run of another recipe, size or number of steps does not share."""
    requested = json.dumps([options, recipes], sort_keys=True)
    return f"{title}-{hashlib.sha256(requested.encode()).hexdigest()[:8]}"


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


def run_missing(wanted: Callable[[], Iterable[Trial]], ended: Callable[[], None], results: Path) -> list[str]:
    """Run what is missing; return the names of trials that failed, which are not started again."""
    failed: list[str] = []
    while left := [trial for trial in missing(wanted(), results) if trial.name not in failed]:
        if run(left[0], results) or missing(left[:1], results):
            failed.append(left[0].name)
        ended()
    return failed


def missing(wanted: Iterable[Trial], results: Path) -> list[Trial]:
    return [trial for trial in wanted if len(runs_of(results, trial.name)) < len(trial.recipes)]


def run(trial: Trial, results: Path) -> int:
    """Run what is left of a trial; return its exit code. A killed command ends its trial too."""
    print(trial.name, flush=True)
    left = trial.recipes[len(runs_of(results, trial.name)) :]
    recipes = results / f"{trial.name}.recipes"
    recipes.write_text(json.dumps(left), encoding="utf-8")
    output = ["--output", str(result_path(results, trial.name))]
    command = [sys.executable, *trial.command, str(recipes), *output]
    return subprocess.run(command, preexec_fn=dying_with_parent(signal.SIGTERM), check=False).returncode
