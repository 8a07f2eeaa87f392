"""GLUE of small encoders after equal pretraining: this trainer, and `transformers.Trainer` with ModernBERT.

    python benchmarks/glue_small.py WORK GLUE RESULTS [--steps 600] [--tasks cola stsb qnli] [--output DIR]

WORK holds what `passages.py` wrote, GLUE a folder per task as `evaluate glue` reads them. Both sides pretrain
three models each, of 53M parameters on as many tokens, at the same time: `own_trainer.py` on its recipe, and
`peer_trainer.py` with AdamW at its best rate. Each is fine-tuned once per task with the run files of
`evaluate glue`, by this trainer for both sides: several at a time, without preflight and checkpoints.
Intervals are over the pretrainings. What RESULTS has is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from made_up_run import write_run
from measurement import write_measurement
from time_to_loss import config_of
from trials import DEFAULT_KERNELS, HERE, ROWS, SEEDS, SHARE, difference

from launcher.rundir.records import parse_lines
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.settings import Start, run_settings
from neobert.evaluation.glue.summary import best_row
from neobert.evaluation.glue.tasks import TASKS
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, RESOLVED
from profiles.registry import resolve_run

SIDES = ("ours", "peer")
RATE = 1e-4
KEYS = (
    f"optimizer.lr={RATE}",
    *(f"trainer.{key}=null" for key in ("metric_for_best_model", "early_stopping_patience")),
    "trainer.save_steps=0",
)
"""All epochs, without the saves of better checkpoints."""
PEER = {"share": SHARE, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}
"""The best of six settings (time-to-loss.json)."""


class Point(NamedTuple):
    """A task for one pretrained model."""

    task: str
    side: str
    seed: int


def pretrain(chosen: argparse.Namespace) -> dict[str, Any]:
    """Train what is missing, both sides at the same time; return the lines of the results by side."""
    options = ["--size", chosen.size, "--rows", str(ROWS[chosen.size])]
    config = ["--config", json.dumps(recipe_of(chosen))]
    recipes = {
        "ours": [{"steps": chosen.steps, "seed": seed} for seed in SEEDS],
        "peer": [{**PEER, "steps": chosen.steps, "seed": seed} for seed in SEEDS],
    }
    programs = {"ours": ["own_trainer.py", *config], "peer": ["peer_trainer.py"]}
    children = {}
    for side, (program, *more) in programs.items():
        given, output = chosen.results / f"{side}.recipes", chosen.results / f"{side}.jsonl"
        given.write_text(json.dumps(recipes[side]), encoding="utf-8")
        if output.exists() and len(output.read_text().splitlines()) == len(SEEDS):
            continue
        output.unlink(missing_ok=True)
        keep = ["--output", str(output), "--keep", str(chosen.results / side)]
        command = [sys.executable, str(HERE / program), str(chosen.work), str(given), *options, *more, *keep]
        with (chosen.results / f"{side}.log").open("w") as log:
            children[side] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    for side, child in children.items():
        if child.wait():
            sys.exit(f"{side}: {(chosen.results / f'{side}.log').read_text()[-3000:]}")
    return {side: list(parse_lines((chosen.results / f"{side}.jsonl").read_text())) for side in SIDES}


def recipe_of(chosen: argparse.Namespace) -> dict[str, Any]:
    if chosen.size != "tiny":
        return config_of(chosen.steps, "triton")
    recipe = config_of(chosen.steps, DEFAULT_KERNELS)  # that of a dry run on a CPU, without graphs
    return recipe | {"trainer": recipe["trainer"] | {"cuda_graphs": False}}


def fine_tune(chosen: argparse.Namespace, files: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Train a task from a pretrained model; return its best evaluation."""
    folder = chosen.results / "runs" / "-".join(map(str, point))
    if not (folder / "ended").exists():
        model, task = chosen.results / point.side / str(point.seed), TASKS[point.task]
        settings = run_settings(
            task,
            point.seed,
            model=json.loads((model / "config.json").read_text()),
            tokenizer=model,
            start=Start("pretrained", model),
            data=chosen.results / "data" / point.task,
            train_rows=files[point.task]["train"]["rows"],
            output=folder,
            device=chosen.device,
        )
        run_file = chosen.results / f"{folder.name}.json"
        run_file.write_text(json.dumps(settings), encoding="utf-8")
        config = resolve_run(None, [run_file], [*KEYS, *chosen.set]).config
        write_run(folder, config)
        command = [sys.executable, "-m", "neobert.train", str(folder / RESOLVED)]
        with (folder / "output.txt").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            raise RuntimeError(f"{folder.name}: {(folder / 'output.txt').read_text()[-2000:]}")
        shutil.rmtree(folder / CHECKPOINTS)
        (folder / "ended").touch()
    return best_row(TASKS[point.task], parse_lines((folder / METRICS).read_text())) or {}


def points(tasks: list[str]) -> Iterator[Point]:
    """Yield all points, tasks with more steps first."""
    yield from (Point(task, side, seed) for task in tasks for seed in SEEDS for side in SIDES)


def report(tasks: list[str], rows: Mapping[Point, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores by task and side, and the difference over the pretrainings."""
    found: dict[str, Any] = {"tasks": {}}
    means: dict[str, list[float]] = {side: [0.0] * len(SEEDS) for side in SIDES}
    for name in tasks:
        scores = {
            side: [
                statistics.fmean(rows[Point(name, side, seed)][metric] for metric in TASKS[name].metrics)
                for seed in SEEDS
            ]
            for side in SIDES
        }
        found["tasks"][name] = summary(scores)
        for side in SIDES:
            means[side] = [
                total + score / len(tasks) for total, score in zip(means[side], scores[side], strict=True)
            ]
    return found | {"mean": summary(means)}


def summary(scores: Mapping[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        side: {"scores": values, "mean": statistics.fmean(values), "std": statistics.stdev(values)}
        for side, values in scores.items()
    }
    return found | {"difference": difference(*(scores[side] for side in SIDES))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--steps", type=int, default=600, help="of 32,768 tokens")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["cola", "stsb", "qnli"])
    parser.add_argument("--at-a-time", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE of all fine-tuning runs")
    parser.add_argument("--only-pretrain", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    chosen.work, chosen.glue, chosen.results = (
        path.resolve() for path in (chosen.work, chosen.glue, chosen.results)
    )
    chosen.results.mkdir(parents=True, exist_ok=True)
    pretrained = pretrain(chosen)
    for side, lines in pretrained.items():
        print(side, *(f"test loss {line.get('test_loss', line['loss']):.3f}" for line in lines), flush=True)
    if chosen.only_pretrain:
        return
    data = chosen.results / "data"
    files = {name: prepare_task(TASKS[name], str(chosen.glue), data / name) for name in chosen.tasks}
    order = list(points(chosen.tasks))
    with ThreadPoolExecutor(chosen.at_a_time) as pool:
        rows = dict(zip(order, pool.map(lambda point: fine_tune(chosen, files, point), order), strict=True))
    found = report(chosen.tasks, rows)
    for name, each in {**found["tasks"], "mean": found["mean"]}.items():
        sides = ", ".join(
            f"{side} {100 * each[side]['mean']:.1f} +- {100 * each[side]['std']:.1f}" for side in SIDES
        )
        low, high = (100 * end for end in each["difference"]["interval"])
        print(
            f"{name:6} {sides}; difference {100 * each['difference']['mean']:+.1f} ({low:.1f} to {high:.1f})"
        )
    if chosen.output:
        kernels = {side: lines[0].get("kernels") for side, lines in pretrained.items()}
        lean = {
            side: [{key: value for key, value in line.items() if key != "kernels"} for line in lines]
            for side, lines in pretrained.items()
        }
        detail = {**found, "pretraining": lean, "rate": RATE, "files": files}
        detail |= {"own_kernels": kernels["ours"], "peer_kernels": kernels["peer"]}
        value = round(100 * found["mean"]["difference"]["mean"], 2)
        unit = "points of the mean of the tasks above the peer"
        write_measurement(chosen.output / "glue-small.json", value, unit, 0.0, detail)


if __name__ == "__main__":
    main()
