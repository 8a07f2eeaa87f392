"""NeoBERT-250M from two checkouts of this repository, in turns: rates and losses of each run.

    git archive COMMIT | tar x -C OLD
    python benchmarks/two_commits.py OLD WORK --ranks 4 --mode fsdp2 [--SECTION.KEY=VALUE ...]
    python benchmarks/two_commits.py . WORK --old-ranks 1 --ranks 2 --mode replicated     # share of linear

Text, model and rows are as in `made_up_run.py`: 32,768 tokens of made-up documents for each GPU and step.
Each round trains from both checkouts, in an order that alternates, from the same random weights and on the
same samples, under the profile `gpu` of each checkout, and with the keys of the command line. The figure is
the tokens per second and GPU of this checkout, divided by the other's, medians of all rounds without the
first steps of a run. At the learning rate of that profile, which is for a smaller model, the loss of this one
rises, and two roundings of one sum end several percent apart. At `CALM` it falls, and the difference stays at
rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from made_up_run import FULL, TINY, run_keys, write_text
from measurement import write_measurement

from launcher.process.process_tree import kill_tree
from neobert.metric_names import PACE, TRAIN_LOSS

HERE = Path(__file__).resolve().parents[1]
REASON = "benchmark: a short run with random weights"
WARM = 10
"""First steps of a run, which are not timed."""
CALM = 1e-4
"""Learning rate, reached in the first fifth of the steps."""


def train_commit(
    root: Path, run_file: Path, run_dir: Path, keys: Sequence[str], limit_s: float
) -> list[dict[str, Any]]:
    """Train with one checkout's command line; return its metrics rows. `keys`: `--SECTION.KEY=VALUE`."""
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [sys.executable, "-m", "launcher", "train", str(run_file), "--unguarded", REASON]
    command += [f"--trainer.output_dir={run_dir}", *keys]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    log, environment = run_dir.with_suffix(".log"), os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=root, env=environment)
        try:
            code = child.wait(limit_s)
        finally:
            kill_tree(child)
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    if code:
        sys.exit(f"{root} exits with {code}: {log.read_text(encoding='utf-8')[-3000:]}")
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if TRAIN_LOSS in row]


def median_rate(runs: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """Return the median rate over the steps of all runs, excluding their first steps."""
    return median(row[PACE] for rows in runs for row in rows if row["step"] > WARM)


def largest_difference(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest relative difference between the losses of two runs, over all steps."""
    return max(abs(a[TRAIN_LOSS] / b[TRAIN_LOSS] - 1) for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--new", type=Path, default=HERE, help="the later checkout (default: this one)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--old-ranks", type=int, help="ranks of the other checkout (default: --ranks)")
    parser.add_argument("--mode", choices=("replicated", "fsdp2"), default="fsdp2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=150.0, help="time limit of a run in seconds")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a CPU")
    parser.add_argument("--output", type=Path, help="folder for the JSON file")
    chosen, keys = parser.parse_known_args()
    work, size = chosen.work.resolve(), TINY if chosen.small else FULL
    write_text(work, size)
    values = run_keys(work, work / "run", size, steps=chosen.steps)
    values |= {"profile": "gpu" if size.is_full else "cpu", "pretraining": None}
    values["optimizer"] = {"lr": CALM}
    values["trainer"] |= {"logging_steps": 1}
    ranks = {"old": chosen.old_ranks or chosen.ranks, "new": chosen.ranks}
    roots = {"old": chosen.old.resolve(), "new": chosen.new.resolve()}
    sides: dict[str, list[Any]] = {"old": [], "new": []}
    for number in range(chosen.rounds):
        for side in sorted(roots, reverse=number % 2 == 0):
            distributed = {"nproc_per_node": ranks[side], "mode": chosen.mode}
            run_file = work / f"{side}.json"
            run_file.write_text(json.dumps(values | {"distributed": distributed}), encoding="utf-8")
            sides[side].append(
                train_commit(roots[side], run_file, work / f"{side}-{number}", keys, chosen.limit)
            )
        rates = {side: median_rate(runs) / ranks[side] for side, runs in sides.items()}
        found = {
            "ranks": ranks,
            "rates": rates,
            "rates_of_runs": {
                side: [median_rate([rows]) / ranks[side] for rows in runs] for side, runs in sides.items()
            },
            "losses_apart": largest_difference(sides["new"][-1], sides["old"][-1]),
            "losses_of_first_and_last_new": largest_difference(sides["new"][-1], sides["new"][0]),
            "losses": {side: [row[TRAIN_LOSS] for row in runs[-1]] for side, runs in sides.items()},
        }
        path = (chosen.output or work) / "two-commits.json"
        ratio, is_complete = rates["new"] / rates["old"], number + 1 == chosen.rounds
        write_measurement(path, ratio, "of the other checkout's rate", 1.0, found, is_complete=is_complete)
        print(
            f"{ratio:.4f} of {rates['old']:,.0f} tokens/s and GPU, losses apart {found['losses_apart']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
