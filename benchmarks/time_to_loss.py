"""Time to the held-out loss that `transformers.Trainer` reaches: this trainer's seconds over the peer's.

    python benchmarks/time_to_loss.py WORK RESULTS --steps 3200 [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote. RESULTS keeps a file for each finished trial, and only missing trials
run, one at a time on each visible GPU: several short sessions on a machine add up. The peer
(`peer_trainer.py`) gets one run at each rate, and two more seeds at the best; this trainer
(`recipe_screen.py`) gets three seeds of RECIPE at each number of `--steps`. The figure is the mean time of
the fewest steps whose mean loss is at or below the peer's, over the peer's mean time. Clocks start at the
first optimizer step; evaluations are outside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from measurement import write_measurement

HERE = Path(__file__).parent
PEER_RATES = (5e-4, 1e-3, 2e-3)
PEER_STEPS = 5_538
"""Of 32,768 tokens: 300 s of the Trainer on an H200. Larger steps end higher (docs/learning.md)."""
SEEDS = range(3)
ROWS, SHARE = 64, 0.3
RECIPE: dict[str, Any] = {
    "init": "scaled",
    "optimizer": "muon",
    "muon_lr": 3e-3,
    "lr": 3e-3,
    "weight_decay": 0.1,
    "shape": "linear",
}
CONFIG = {
    "model": {"embedding_multiplier": 22.6, "intermediate_size": 2016},
    "datacollator": {"mlm_probability": SHARE},
}
"""The feed-forward width, 1,344, is that of the peer."""
TARGET = 1 / 3


@dataclass(frozen=True)
class Trial:
    """A run on one GPU.

    Attributes:
        name: its file in RESULTS.
        command: the benchmark that appends a line of JSON to the file named last.
        most_s: not started with less time left.
        recipe: written to NAME.trial, which the command reads.
    """

    name: str
    command: tuple[str, ...]
    most_s: float
    recipe: dict[str, Any] | None = None


def peer(work: Path, rate: float, seed: int, chosen: argparse.Namespace) -> Trial:
    """Describe a run of the peer."""
    arguments = ("--rows", ROWS, "--steps", chosen.peer_steps, "--lr", rate, "--share", SHARE, "--seed", seed)
    command = (HERE / "peer_trainer.py", work, "--size", chosen.size, *arguments, "--output")
    return Trial(f"peer-{rate:g}-seed-{seed}", tuple(map(str, command)), 370.0)


def ours(work: Path, results: Path, steps: int, seed: int, chosen: argparse.Namespace) -> Trial:
    """Describe a run of this trainer."""
    name = f"ours-{steps}-seed-{seed}"
    trials = results / f"{name}.trial"
    arguments = ("--size", chosen.size, "--rows", ROWS, "--config", json.dumps(CONFIG), "--output")
    command = (HERE / "recipe_screen.py", work, trials, *arguments)
    return Trial(name, tuple(map(str, command)), 40.0 + 0.04 * steps, RECIPE | {"steps": steps, "seed": seed})


def wanted(work: Path, results: Path, chosen: argparse.Namespace) -> Iterator[Trial]:
    """Yield all trials that can be named by now: other seeds of the peer wait for its best rate."""
    rates = [peer(work, rate, 0, chosen) for rate in PEER_RATES]
    yield from rates
    for steps in chosen.steps:
        yield from (ours(work, results, steps, seed, chosen) for seed in SEEDS)
    if all(result(results, trial.name) for trial in rates):
        yield from (peer(work, best_rate(results), seed, chosen) for seed in SEEDS[1:])


def result(results: Path, name: str) -> dict[str, Any] | None:
    """Return the result of a finished trial."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def best_rate(results: Path) -> float:
    return min(PEER_RATES, key=lambda rate: (result(results, f"peer-{rate:g}-seed-0") or {})["loss"])


def run_missing(work: Path, results: Path, chosen: argparse.Namespace) -> None:
    """Run what is missing on all GPUs until nothing is left, or too little time."""
    begun = time.perf_counter()
    free, running = list(range(max(1, torch.cuda.device_count()))), {}
    while True:
        left_s = chosen.seconds - (time.perf_counter() - begun)
        names = {trial.name for trial, _ in running.values()}
        missing = [
            trial
            for trial in wanted(work, results, chosen)
            if trial.name not in names and result(results, trial.name) is None and trial.most_s < left_s
        ]
        if not missing and not running:
            return
        while free and missing:
            gpu, trial = free.pop(0), missing.pop(0)
            running[gpu] = trial, start(trial, results, gpu, work)
        for gpu, (trial, child) in list(running.items()):
            if child.poll() is not None:
                del running[gpu]
                free.append(gpu)
                keep(trial, results, child.returncode)
        time.sleep(0.5)


def start(trial: Trial, results: Path, gpu: int, work: Path) -> subprocess.Popen[bytes]:
    """Start a trial on a GPU, with a folder of its own for text that is prepared."""
    own = work.parent / f"{work.name}-gpu-{gpu}"
    own.mkdir(exist_ok=True)
    for each in ("train.jsonl", "passages.npz", "tokenizer"):
        if not (own / each).exists():
            (own / each).symlink_to(work / each)
    if trial.recipe is not None:
        (results / f"{trial.name}.trial").write_text(json.dumps([trial.recipe]), encoding="utf-8")
    command = [str(own) if word == str(work) else word for word in trial.command]
    with (results / f"{trial.name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command, str(results / f"{trial.name}.part")],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
            stdout=log,
            stderr=log,
        )


def keep(trial: Trial, results: Path, code: int) -> None:
    """Keep the result of a child. Raises `RuntimeError` if it failed or diverged."""
    part = results / f"{trial.name}.part"
    found = json.loads(part.read_text(encoding="utf-8").splitlines()[-1]) if part.exists() else {}
    if code or "loss" not in found:
        raise RuntimeError(f"{trial.name} failed: see {results / trial.name}.log")
    part.rename(results / f"{trial.name}.json")
    print(f"{trial.name}: loss {found['loss']:.4f} after {found['seconds']} s", flush=True)


def judge(results: Path, steps: Sequence[int]) -> tuple[float | None, dict[str, Any]]:
    """Return the ratio, None where it cannot be told yet, and what it was made of."""
    found: dict[str, Any] = {"recipe": RECIPE, "config": CONFIG, "rows": ROWS}
    by_rate = {f"{rate:g}": result(results, f"peer-{rate:g}-seed-0") for rate in PEER_RATES}
    found["peer_by_rate"] = by_rate
    if not all(by_rate.values()):
        return None, found
    found["peer"] = theirs = of_seeds(results, f"peer-{best_rate(results):g}")
    found["ours"] = {count: of_seeds(results, f"ours-{count}") for count in steps}
    reached = [
        each
        for _, each in sorted(found["ours"].items())
        if each and theirs and each["loss"] <= theirs["loss"]
    ]
    return (reached[0]["seconds"] / theirs["seconds"] if reached and theirs else None), found


def of_seeds(results: Path, prefix: str) -> dict[str, Any] | None:
    """Return means over all seeds, the deviation of the loss, and the runs; None before all are there."""
    runs = [result(results, f"{prefix}-seed-{seed}") for seed in SEEDS]
    there = [run for run in runs if run is not None]
    if len(there) < len(runs):
        return None
    losses = [run["loss"] for run in there]
    return {
        "loss": mean(losses),
        "loss_deviation": stdev(losses),
        "seconds": mean(run["seconds"] for run in there),
        "tokens": mean(run["tokens"] for run in there),
        "runs": there,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--steps", type=int, nargs="+", default=[3200])
    parser.add_argument("--peer-steps", type=int, default=PEER_STEPS)
    parser.add_argument("--size", choices=["53M", "tiny"], default="53M")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing that would end later")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    results = chosen.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    run_missing(chosen.work.resolve(), results, chosen)
    ratio, found = judge(results, chosen.steps)
    print(f"time to the peer's loss: {'not known' if ratio is None else f'{ratio:.3f} of its time'}")
    if chosen.output and ratio is not None:
        path = chosen.output / "time-to-loss.json"
        write_measurement(path, round(ratio, 4), "of the peer's seconds to its loss", TARGET, found)


if __name__ == "__main__":
    main()
