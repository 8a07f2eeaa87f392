"""GLUE and BLiMP of small encoders that were pretrained for the same wall time, and of random weights.

    python benchmarks/glue_small.py WORK RESULTS --data DATA [--seconds 560] [--output DIR]

WORK holds what `passages.py` wrote; DATA the folders `glue` and `blimp`. This trainer on its
recipe and `transformers.Trainer` with a ModernBERT of equal size train for `--pretraining` seconds
(`timed_pretraining.py`), on two GPUs or in turns on one. Then every task is fine-tuned from three arms: ours,
random weights of its shape, and the peer, by one program on one recipe (`downstream_run.py`): at all
`--rates` with seed 0, and with two more seeds at the rate that was best there. RESULTS keeps a file for each
finished job: the same command continues. A price list comes first, and no job starts that would end after
`--seconds`. All tasks get seed 0 before any gets another, and every job that ends is reported: a command
without time for all of them leaves a comparison with fewer seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glue_report import ARMS, SIDES, TASK_NAMES, best_rate, job_name, report
from step_clock import UNTIMED
from trial_runner import TrialsFailed, parse, priced_parser_of, run_twice, visible_gpus
from trials import HERE, SEEDS, Trial, result

from neobert.atomic_write import write_atomically
from neobert.evaluation.glue.files import prepare_task
from neobert.evaluation.glue.settings import BATCH_SIZE
from neobert.evaluation.glue.tasks import TASKS

SETTINGS = ("size", "pretraining", "batch_rows", "rows", "pairs")
"""Settings that all jobs in a folder of results share."""
RATES = (5e-5, 2e-4)
START_S, STEP_S, BLIMP_S, COMPILE_S, MARGIN = 30.0, 0.03, 120.0, 90.0, 1.2
"""Prices before the first job of a kind has ended, for an H100 that few jobs share; then its time counts."""
SATURATING = 4
"""Jobs that keep a GPU busy: kernels of different processes take turns on it, so more take longer each."""


def prepare(data: Path, glue: Path, tasks: list[str], rows: int | None) -> dict[str, Any]:
    """Write the files of the tasks in the layout of `evaluate glue`; return their counts.

    rows: texts of a training set at most; of a longer one a fixed sample is drawn.
    """
    found: dict[str, Any] = {}
    for name in tasks:
        folder = glue / "data" / name
        prepare_task(TASKS[name], data, folder)
        lines = (folder / "train.jsonl").read_bytes().splitlines(keepends=True)
        if rows is not None and len(lines) > rows:
            chosen = sorted(random.Random(0).sample(range(len(lines)), rows))
            write_atomically(folder / "train.jsonl", b"".join(lines[index] for index in chosen))
        found[name] = {"files": prepare_task(TASKS[name], glue / "data", folder)}
    write_atomically(glue / "glue.json", json.dumps({"tasks": found}).encode())
    return found


def pretraining(chosen: argparse.Namespace) -> list[Trial]:
    """Return the two runs that leave a checkpoint."""
    words = ("--seconds", chosen.pretraining, "--size", chosen.size, "--rows", chosen.batch_rows)
    words += ("--pace-steps", chosen.pace_steps, "--output")
    program, models = HERE / "timed_pretraining.py", chosen.results / "models"
    return [
        Trial(
            f"pretrain-{side}",
            tuple(map(str, (program, side, chosen.work, models, *words))),
            COMPILE_S + chosen.pretraining,
        )
        for side in SIDES
    ]


def jobs(chosen: argparse.Namespace, files: dict[str, Any]) -> list[Trial]:
    """Return all jobs on checkpoints that are there; other seeds wait for a rate.

    Those of the first seed come first, and the longest of them: the last job to end is a short one.
    """
    found = [*((SEEDS[0], job) for job in blimp_jobs(chosen)), *glue_jobs(chosen, files)]
    return [job for _, job in sorted(found, key=lambda each: (each[0], -each[1].most_s))]


def is_there(chosen: argparse.Namespace, arm: str) -> bool:
    side = "peer" if arm == "peer" else "ours"
    return result(chosen.results, f"pretrain-{side}") is not None


def blimp_jobs(chosen: argparse.Namespace) -> Iterator[Trial]:
    pairs = chosen.data / "blimp" / "blimp.jsonl.gz"
    for arm in ARMS:
        more = ["--pairs", chosen.pairs] if chosen.pairs else []
        if is_there(chosen, arm):
            yield job(
                chosen, f"{arm}-blimp", ["blimp", model(chosen, arm), pairs, *more], BLIMP_S, "accuracy"
            )


def glue_jobs(chosen: argparse.Namespace, files: dict[str, Any]) -> Iterator[tuple[int, Trial]]:
    """Yield fine-tuning runs with their seed."""
    for arm in ARMS:
        for task in chosen.tasks if is_there(chosen, arm) else ():
            price_s = price(task, files[task]["files"]["train"]["rows"], chosen.per_gpu)
            for rate, seed in points(chosen, arm, task):
                more = ["--task", task, "--lr", rate, "--seed", seed]
                words = ["glue", model(chosen, arm), chosen.results / "glue", *more]
                yield seed, job(chosen, job_name(arm, task, rate, seed), words, price_s, "step")


def model(chosen: argparse.Namespace, arm: str) -> Path:
    folder: Path = chosen.results / "models" / arm
    return folder


def points(chosen: argparse.Namespace, arm: str, task: str) -> list[tuple[float, int]]:
    """Return rates and seeds of a task that can be known by now."""
    first = [(rate, SEEDS[0]) for rate in chosen.rates]
    is_only = len(chosen.rates) == 1
    best = chosen.rates[0] if is_only else best_rate(chosen.results, arm, task, chosen.rates)
    return first if best is None else [*first, *((best, seed) for seed in SEEDS[1:])]


def job(chosen: argparse.Namespace, name: str, words: list[Any], price_s: float, figure: str) -> Trial:
    """Describe a job; the longest of its kind so far gives the price of the next."""
    kind = "-".join(name.split("-")[:2])
    ended = (result(chosen.results, path.stem) for path in chosen.results.glob(f"{kind}*.jsonl"))
    seconds = [run["seconds"] for run in ended if run is not None]
    folder = chosen.results / "runs" / name
    command = (HERE / "downstream_run.py", *words, "--folder", folder, "--output")
    most_s = MARGIN * max(seconds) if seconds else price_s
    return Trial(name, tuple(map(str, command)), most_s, figure=figure)


def price(task: str, rows: int, per_gpu: int) -> float:
    step_s = STEP_S * max(1.0, per_gpu / SATURATING)
    return START_S + step_s * TASKS[task].epochs * math.ceil(rows / BATCH_SIZE)


def price_list(chosen: argparse.Namespace, files: dict[str, Any]) -> Iterator[str]:
    """Yield the price of everything, also of what has ended, before early stopping ends some of it."""
    gpus = len(visible_gpus())
    slots, runs = gpus * chosen.per_gpu, len(ARMS) * (len(chosen.rates) + len(SEEDS) - 1)
    first_s = (
        COMPILE_S + math.ceil(len(SIDES) / gpus) * chosen.pretraining
    )  # one compiles in the other's turn
    yield f"pretraining: {len(SIDES)} x {COMPILE_S + chosen.pretraining:.0f} s, {first_s:.0f} s together"
    total_s = len(ARMS) * BLIMP_S
    yield f"blimp: {len(ARMS)} x {BLIMP_S:.0f} s"
    for task in chosen.tasks:
        rows = files[task]["files"]["train"]["rows"]
        each_s = price(task, rows, chosen.per_gpu)
        total_s += runs * each_s
        yield f"{task}: {runs} x {each_s:.0f} s at most, {rows:,} rows"
    yield f"in all {first_s + total_s / slots:.0f} s at most with {slots} jobs at a time"


def other_settings(chosen: argparse.Namespace) -> list[str]:
    """Return the settings that the first command for this folder of results had otherwise."""
    path = chosen.results / "settings.json"
    own = {name: getattr(chosen, name) for name in SETTINGS}
    if not path.exists():
        write_atomically(path, json.dumps(own).encode())
    kept = json.loads(path.read_bytes())
    return [f"--{name.replace('_', '-')}" for name in SETTINGS if kept.get(name) != own[name]]


def lost_models(chosen: argparse.Namespace) -> list[str]:
    """Return the finished pretraining runs whose model is gone, such as with the machine that made it."""
    models = {"pretrain-ours": ("ours", "random"), "pretrain-peer": ("peer",)}
    return [
        name
        for name, arms in models.items()
        if result(chosen.results, name) is not None
        and not all((model(chosen, arm) / "config.json").exists() for arm in arms)
    ]


def run_all(chosen: argparse.Namespace, files: dict[str, Any], report_so_far: Callable[[], str]) -> None:
    """Pretrain, then fine-tune what there is, also if one side failed. Raises `TrialsFailed` in the end."""

    def known() -> list[Trial]:
        report_so_far()
        return jobs(chosen, files)

    failed: list[str] = []
    for wanted, per_gpu in ((lambda: pretraining(chosen), len(SIDES)), (known, chosen.per_gpu)):
        try:
            run_twice(wanted, chosen, per_gpu)
        except TrialsFailed as error:
            failed += error.names
    if failed:
        raise TrialsFailed(failed)


def main() -> None:
    parser = priced_parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with glue and blimp")
    parser.add_argument("--pretraining", type=float, default=300.0, help="seconds of steps on each side")
    parser.add_argument("--batch-rows", type=int, default=64, help="of 512 tokens, in a step of pretraining")
    parser.add_argument("--pace-steps", type=int, default=200, help="that tell how many fit")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASK_NAMES))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="of fine-tuning")
    parser.add_argument("--rows", type=int, help="texts of a training set at most; default: all")
    parser.add_argument("--pairs", type=int, help="of each paradigm of BLiMP; default: all")
    parser.add_argument("--per-gpu", type=int, default=4, help="jobs on a GPU at a time")
    chosen = parse(parser)
    if chosen.pace_steps <= UNTIMED:
        parser.error(f"--pace-steps {chosen.pace_steps}: more than {UNTIMED} are needed")
    chosen.data = chosen.data.resolve()
    if others := other_settings(chosen):
        parser.error(f"{chosen.results.name} has jobs of another {', '.join(others)}: name another folder")
    if lost := lost_models(chosen):
        parser.error(f"{chosen.results.name} has {', '.join(lost)} without its models: name another folder")
    files = prepare(chosen.data / "glue", chosen.results / "glue", chosen.tasks, chosen.rows)
    print("\n".join(price_list(chosen, files)), flush=True)
    if chosen.list:
        return

    def so_far() -> str:
        return report(chosen.results, chosen.output, chosen.rates, files)

    try:
        run_all(chosen, files, so_far)
    finally:
        print(so_far(), flush=True)


if __name__ == "__main__":
    main()
