"""GLUE of small encoders after equal pretraining: this trainer, and `transformers.Trainer` with ModernBERT.

    python benchmarks/glue_small.py WORK GLUE RESULTS [--steps 600] [--seconds 450] [--output DIR]

WORK holds what `passages.py` wrote. GLUE has a folder per task as
`evaluate glue` reads them; the training texts of SST-2 and QNLI are samples of 10,000 and 8,999. Both sides
pretrain three models each, of 53M parameters on as many tokens, at the same time: `own_trainer.py` on its
recipe, and `peer_trainer.py` with AdamW at its best rate. Each is fine-tuned once per task as soon as it is
there, with the run files of `evaluate glue` and fewer epochs, by this trainer for both sides: several at a
time, without preflight and checkpoints. Intervals are over the pretrainings. After the given seconds nothing
is begun, and what runs is ended; a task counts where all six models have it, and the file is written after
each run. What RESULTS has is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from measurement import write_measurement
from time_to_loss import config_of
from trials import DEFAULT_KERNELS, HERE, ROWS, SEEDS, SHARE, difference
from unchecked_run import write_run

from launcher.process.child_start import dying_with_parent
from neobert.config import RunConfig
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.settings import BATCH_SIZE, Start, run_settings
from neobert.evaluation.glue.summary import best_row
from neobert.evaluation.glue.tasks import TASKS
from neobert.runfiles.run_dir import CHECKPOINTS, METRICS, RESOLVED
from neobert.training.telemetry.jsonl_writer import read_rows
from profiles.registry import resolve_run

SIDES = ("ours", "peer")
RATE = 1e-4
KEYS = (
    f"optimizer.lr={RATE}",
    *(f"trainer.{key}=null" for key in ("metric_for_best_model", "early_stopping_patience")),
    "trainer.save_steps=0",
)
"""All steps, without the saves of better checkpoints."""
EPOCHS = {"cola": 5, "stsb": 5, "qnli": 3, "sst2": 3, "mrpc": 5, "rte": 5}
PEER = {"share": SHARE, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}
"""The best of six settings (time-to-loss.json)."""
POLL_S = 0.5
ENDING = dying_with_parent(signal.SIGTERM)
"""A program that is cut off leaves nothing on the GPU."""


class Point(NamedTuple):
    """A task for one pretrained model."""

    task: str
    side: str
    seed: int


Rows = Mapping[Point, Mapping[str, Any]]


class Bench:
    """Pretrainings of both sides, and the fine-tuning runs from them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.results = chosen, chosen.results.resolve()
        self.results.mkdir(parents=True, exist_ok=True)
        self.until_s = time.monotonic() + chosen.seconds
        self.files = {
            name: prepare_task(TASKS[name], str(chosen.glue.resolve()), self.results / "data" / name)
            for name in chosen.tasks
        }
        self.children = {side: self._pretrain(side) for side in SIDES if len(self.lines(side)) < len(SEEDS)}

    def lines(self, side: str) -> list[dict[str, Any]]:
        """Return what the finished pretrainings of a side measured; a model is there when its line is."""
        return read_rows(self.results / f"{side}.jsonl")

    def _pretrain(self, side: str) -> subprocess.Popen[bytes]:
        chosen = self.chosen
        recipe, options = {"steps": chosen.steps}, ["peer_trainer.py"]
        if side == "ours":
            options = ["own_trainer.py", "--config", json.dumps(recipe_of(chosen))]
        else:
            recipe |= PEER
        output, given = self.results / f"{side}.jsonl", self.results / f"{side}.recipes"
        output.unlink(missing_ok=True)
        given.write_text(json.dumps([{**recipe, "seed": seed} for seed in SEEDS]), encoding="utf-8")
        program, *more = options
        command = [sys.executable, HERE / program, chosen.work.resolve(), given, *more, "--size", chosen.size]
        command += ["--rows", ROWS[chosen.size], "--output", output, "--keep", self.results / side]
        with self._log(side).open("w") as log:
            return subprocess.Popen([*map(str, command)], stdout=log, stderr=log, preexec_fn=ENDING)

    def _log(self, side: str) -> Path:
        return self.results / f"{side}.log"

    def fine_tune(self, point: Point) -> dict[str, Any] | None:
        """Train a task from a pretrained model; return its best evaluation, None if time is up."""
        folder = self.results / "runs" / "-".join(map(str, point))
        if not (folder / "ended").exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_run(folder, self._config_of(point, folder))
            command = [sys.executable, "-m", "neobert.train", str(folder / RESOLVED)]
            left_s = max(1.0, self.until_s - time.monotonic())
            with (folder / "output.txt").open("w") as log:
                try:
                    done = subprocess.run(
                        command, stdout=log, stderr=log, check=False, timeout=left_s, preexec_fn=ENDING
                    )
                except subprocess.TimeoutExpired:
                    return None
            if done.returncode:
                raise RuntimeError(f"{folder.name}: {(folder / 'output.txt').read_text()[-2000:]}")
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
            (folder / "ended").touch()
        return best_row(TASKS[point.task], read_rows(folder / METRICS)) or {}

    def require_pretraining(self) -> None:
        """End the program if a pretraining failed: no task can be complete then."""
        for side, child in self.children.items():
            if child.poll():
                sys.exit(f"{side}: {self._log(side).read_text()[-3000:]}")

    def _config_of(self, point: Point, folder: Path) -> RunConfig:
        model, rows = self.results / point.side / str(point.seed), self.files[point.task]["train"]["rows"]
        settings = run_settings(
            TASKS[point.task],
            point.seed,
            model=json.loads((model / "config.json").read_text()),
            tokenizer=model,
            start=Start("pretrained", model),
            data=self.results / "data" / point.task,
            train_rows=rows,
            output=folder,
            device=self.chosen.device,
        )
        run_file = folder.with_suffix(".json")
        run_file.parent.mkdir(exist_ok=True)
        run_file.write_text(json.dumps(settings), encoding="utf-8")
        steps = EPOCHS[point.task] * math.ceil(rows / BATCH_SIZE)
        keys = [*KEYS, f"trainer.max_steps={steps}", *self.chosen.set]
        return resolve_run(None, [run_file], keys).config

    def write(self, rows: Rows) -> dict[str, Any]:
        """Write the tasks that all six models have; return their scores."""
        done = complete(self.chosen.tasks, rows)
        if not done:
            return {}
        found, lines = report(done, rows), {side: self.lines(side) for side in SIDES}
        if self.chosen.output:
            own, peer = (lines[side][0].get("kernels") for side in SIDES)
            lean = {side: [{**line, "kernels": None} for line in each] for side, each in lines.items()}
            detail = {**found, "pretraining": lean, "rate": RATE, "epochs": EPOCHS, "files": self.files}
            detail |= {"own_kernels": own, "peer_kernels": peer}
            value, unit = 100 * found["mean"]["difference"]["mean"], "points of the mean above the peer"
            path, is_complete = self.chosen.output / "glue-small.json", done == self.chosen.tasks
            write_measurement(path, round(value, 2), unit, 0.0, detail, is_complete=is_complete)
        return found


def recipe_of(chosen: argparse.Namespace) -> dict[str, Any]:
    if chosen.size != "tiny":
        return config_of(chosen.steps, "triton")
    recipe = config_of(chosen.steps, DEFAULT_KERNELS)  # that of a dry run on a CPU, without graphs
    return recipe | {"trainer": recipe["trainer"] | {"cuda_graphs": False}}


def points(tasks: list[str]) -> Iterator[Point]:
    """Yield all points, one task after another."""
    yield from (Point(task, side, seed) for task in tasks for seed in SEEDS for side in SIDES)


def ready(left: list[Point], models: Mapping[str, int]) -> list[Point]:
    """Return the points whose model is there, by the number of finished models of each side."""
    return [point for point in left if point.seed < models[point.side]]


def complete(tasks: list[str], rows: Rows) -> list[str]:
    """Return the tasks that all models have."""
    return [task for task in tasks if all(point in rows for point in points([task]))]


def report(tasks: list[str], rows: Rows) -> dict[str, Any]:
    """Return the scores by task and side, and the difference over the pretrainings."""
    scores = {
        task: {
            side: [
                statistics.fmean(rows[Point(task, side, seed)][metric] for metric in TASKS[task].metrics)
                for seed in SEEDS
            ]
            for side in SIDES
        }
        for task in tasks
    }
    means = {
        side: [statistics.fmean(scores[task][side][seed] for task in tasks) for seed in SEEDS]
        for side in SIDES
    }
    return {"tasks": {task: summary(each) for task, each in scores.items()}, "mean": summary(means)}


def summary(scores: Mapping[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        side: {"scores": values, "mean": statistics.fmean(values), "std": statistics.stdev(values)}
        for side, values in scores.items()
    }
    return found | {"difference": difference(*(scores[side] for side in SIDES))}


def show(found: Mapping[str, Any]) -> None:
    for name, each in {**found["tasks"], "mean": found["mean"]}.items():
        sides = [f"{side} {100 * each[side]['mean']:.1f} +- {100 * each[side]['std']:.1f}" for side in SIDES]
        low, high = (100 * end for end in each["difference"]["interval"])
        mean = 100 * each["difference"]["mean"]
        print(f"{name:6} {', '.join(sides)}; difference {mean:+.1f} ({low:.1f} to {high:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--size", choices=list(ROWS), default="53M")
    parser.add_argument("--steps", type=int, default=600, help="of 32,768 tokens")
    parser.add_argument(
        "--tasks", nargs="+", choices=list(EPOCHS), default=["cola", "stsb", "qnli", "sst2", "mrpc"]
    )
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--at-a-time", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE of all fine-tuning runs")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    bench, rows = Bench(chosen), dict[Point, dict[str, Any]]()
    left, running = list(points(chosen.tasks)), dict[Future[dict[str, Any] | None], Point]()
    with ThreadPoolExecutor(chosen.at_a_time) as pool:
        while running or (left and time.monotonic() < bench.until_s):
            bench.require_pretraining()
            models = {side: len(bench.lines(side)) for side in SIDES}
            for point in ready(left, models)[: chosen.at_a_time - len(running)]:
                left.remove(point)
                running[pool.submit(bench.fine_tune, point)] = point
            time.sleep(POLL_S)
            for future in [each for each in running if each.done()]:
                point, error = running.pop(future), future.exception()
                row = None if error else future.result()
                print(*point, f"failed: {error}" if error else row or "no time was left", flush=True)
                if row is not None:
                    rows[point] = row
                    bench.write(rows)
    for child in bench.children.values():
        child.terminate()
    for side in SIDES:
        losses = (f"{line.get('test_loss', line['loss']):.3f}" for line in bench.lines(side))
        print(side, "loss of the test:", *losses)
    if found := bench.write(rows):
        show(found)


if __name__ == "__main__":
    main()
