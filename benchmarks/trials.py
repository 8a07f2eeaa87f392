"""Runs of this trainer and of `transformers.Trainer` at the same text, one at a time on each visible GPU.

A folder of results keeps a file for each finished trial, and only missing trials run: several short sessions
on a machine add up. What is compared, and the recipe, are in `time_to_loss.py`, `loss_at_equal_tokens.py` and
`recipe_ablations.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

HERE = Path(__file__).parent
SEEDS = range(3)
ROWS, ROW_LENGTH, SHARE = 64, 512, 0.3
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
}
"""The feed-forward width, 1,344, is that of the peer."""


@dataclass(frozen=True)
class Trial:
    """A run on one GPU, or several of this trainer that share a compiled step.

    Attributes:
        name: its file in the folder of results.
        command: the benchmark that appends a line of JSON per run to the file named last.
        most_s: not started with less time left.
        recipes: written to NAME.trial, which the command reads.
        figure: key that every run has, for the terminal.
    """

    name: str
    command: tuple[str, ...]
    most_s: float
    recipes: tuple[Mapping[str, Any], ...] = ()
    figure: str = "loss"


class FailedTrialError(Exception):
    """A child that failed, or has no figure."""


def peer(work: Path, name: str, *, steps: int, rate: float, seed: int, size: str) -> Trial:
    """Describe a run of the peer."""
    arguments = ("--rows", ROWS, "--steps", steps, "--lr", rate, "--share", SHARE, "--seed", seed)
    command = (HERE / "peer_trainer.py", work, "--size", size, *arguments, "--output")
    return Trial(name, tuple(map(str, command)), 60.0 + 0.056 * steps)


def ours(
    work: Path,
    results: Path,
    name: str,
    recipes: Iterable[Mapping[str, Any]],
    *,
    size: str,
    config: Mapping[str, Any] = CONFIG,
) -> Trial:
    """Describe runs of this trainer."""
    chosen = tuple({**RECIPE, **recipe} for recipe in recipes)
    arguments = ("--size", size, "--rows", ROWS, "--config", json.dumps(config), "--output")
    command = (HERE / "recipe_screen.py", work, results / f"{name}.trial", *arguments)
    most_s = 40.0 + 0.035 * sum(recipe["steps"] for recipe in chosen)
    return Trial(name, tuple(map(str, command)), most_s, chosen)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what all comparisons take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=["53M", "tiny"], default="53M")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing that would end later")
    parser.add_argument("--output", type=Path)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, make the folder of results, and start the clock of `--seconds`."""
    chosen = parser.parse_args()
    chosen.begun = time.perf_counter()
    chosen.work, chosen.results = chosen.work.resolve(), chosen.results.resolve()
    chosen.results.mkdir(parents=True, exist_ok=True)
    return chosen


def lines_of(results: Path, name: str) -> list[dict[str, Any]] | None:
    """Return the runs of a finished trial."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def result(results: Path, name: str) -> dict[str, Any] | None:
    """Return the only run of a finished trial."""
    return (lines_of(results, name) or [None])[0]


def num_gpus() -> int:
    """Return the number of visible GPUs; 1 on a CPU."""
    return max(1, torch.cuda.device_count())


def run_missing(wanted: Callable[[], Iterable[Trial]], chosen: argparse.Namespace, per_gpu: int = 1) -> None:
    """Run what is missing on all GPUs until nothing is left, or too little time.

    `wanted` names all trials that can be known by now, in their order; it is asked again when one has ended.
    Raises `FailedTrialError` in the end if one failed, which does not stop the others.
    """
    free = [*range(num_gpus())] * per_gpu
    running: list[tuple[int, Trial, subprocess.Popen[bytes]]] = []
    failed: list[str] = []
    while True:
        left_s = chosen.seconds - (time.perf_counter() - chosen.begun)
        names = {trial.name for _, trial, _ in running}.union(failed)
        missing = [
            trial
            for trial in wanted()
            if trial.name not in names
            and trial.most_s < left_s
            and lines_of(chosen.results, trial.name) is None
        ]
        if not missing and not running:
            break
        while free and missing:
            gpu, trial = free.pop(0), missing.pop(0)
            running.append((gpu, trial, start(trial, chosen.results, gpu, chosen.work)))
        for entry in list(running):
            gpu, trial, child = entry
            if child.poll() is None:
                continue
            running.remove(entry)
            free.append(gpu)
            try:
                keep(trial, chosen.results, child.returncode)
            except FailedTrialError as error:
                print(error, flush=True)
                failed.append(trial.name)
        time.sleep(0.5)
    if failed:
        raise FailedTrialError(f"failed: {', '.join(failed)}")


def start(trial: Trial, results: Path, gpu: int, work: Path) -> subprocess.Popen[bytes]:
    """Start a trial on a GPU; what prepares text gets a folder of that GPU's own."""
    command = list(trial.command)
    if str(work) in command:
        command[command.index(str(work))] = str(own_folder(work, gpu))
    (results / f"{trial.name}.part").unlink(missing_ok=True)  # of a run that was cut short
    if trial.recipes:
        (results / f"{trial.name}.trial").write_text(json.dumps(trial.recipes), encoding="utf-8")
    with (results / f"{trial.name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command, str(results / f"{trial.name}.part")],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
            stdout=log,
            stderr=log,
        )


def own_folder(work: Path, gpu: int) -> Path:
    """Return a folder with links to the text."""
    own = work.parent / f"{work.name}-gpu-{gpu}"
    own.mkdir(exist_ok=True)
    for each in ("train.jsonl", "passages.npz", "tokenizer"):
        if not (own / each).exists():
            (own / each).symlink_to(work / each)
    return own


def keep(trial: Trial, results: Path, code: int) -> None:
    """Keep the results of a child. Raises `FailedTrialError` if it failed or diverged."""
    part = results / f"{trial.name}.part"
    lines = part.read_text(encoding="utf-8").splitlines() if part.exists() else []
    runs = [json.loads(line) for line in lines]
    if code or len(runs) < max(1, len(trial.recipes)) or any(trial.figure not in run for run in runs):
        raise FailedTrialError(f"{trial.name} failed: see {results / trial.name}.log")
    part.rename(results / f"{trial.name}.json")
    for run in runs:
        print(f"{trial.name}: {trial.figure} {run[trial.figure]:.4g} after {run['seconds']} s", flush=True)


def summary(runs: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return means over all seeds, the deviation of the loss, and the runs; None before all are there."""
    wanted = list(runs)
    there = [run for run in wanted if run is not None]
    if len(there) < len(wanted):
        return None
    losses = [run["loss"] for run in there]
    return {
        "loss": mean(losses),
        "loss_deviation": stdev(losses),
        "seconds": mean(run["seconds"] for run in there),
        "tokens": mean(run["tokens"] for run in there),
        "runs": there,
    }
