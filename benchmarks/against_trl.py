"""Causal training and fine-tuning on conversations: this trainer against TRL's SFTTrainer, on one device.

    python benchmarks/against_trl.py RUN_FILE WORK [--arms ...] [--loss-steps 200] [--output DIR]

RUN_FILE is a run of `task: causal` or `sft`. Ours is its step, as the file says and compiled; the peer
(`peers/trl_arm.py`) trains the same microbatches: padded by default, and padding-free on torch's varlen
kernel or on FlashAttention 4 by name. Turns, profiles and ratios are those of `against_trainer.py`.

With --loss-steps, `train` runs that many steps first, and one form of the peer too, from the same weights and
on the same microbatches. RUN_FILE needs a checkpoint (`model.pretrained_checkpoint`) and a constant rate
(`scheduler.final_lr_ratio: 1`, no warm-up). The figure is the largest relative difference of 10-step means.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from against_trainer import OURS, contest, resolved_path, table
from measurement import write_measurement
from peers.turn_taking import BENCHMARKS, Child

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.metric_names import TRAIN_LOSS
from profiles.registry import resolve_run

PEERS = (
    "default",
    "padding-free",
    "padding-free, liger",
    "padding-free, compiled",
    "padding-free, flash_attention_4",
    "padding-free, flash_attention_4, compiled",
)
"""Forms of `peers/trl_arm.py`."""
ROWS = "rows.pt"
MIN_MICROBATCHES = 64
WINDOW = 10


def start(work: Path, name: str, log: Any) -> Child:
    if name in OURS:
        return Child("own_arm", [str(resolved_path(work, name))], log)
    return Child("trl_arm", [str(resolved_path(work, "ours")), str(work / ROWS), name], log)


def peer_module(module: str, *arguments: str) -> str:
    """Run a module of `peers` to its end; return its standard output."""
    command = [sys.executable, "-m", f"peers.{module}", *arguments]
    return subprocess.run(command, cwd=BENCHMARKS, check=True, stdout=subprocess.PIPE, text=True).stdout


def own_losses(work: Path, config: RunConfig, steps: int) -> list[float]:
    """Return the loss of each step of a run by the command line."""
    keys = {"max_steps": steps, "logging_steps": 1, "save_steps": 0, "eval_steps": 0}
    values = to_dict(config)
    values["trainer"] |= {**keys, "output_dir": str(work / "loss"), "overwrite_output_dir": True}
    path = work / "loss.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    reason = "benchmark: the losses of a short run"
    command = [sys.executable, "-m", "launcher", "train", "-c", str(path), "--unguarded", reason]
    with (work / "loss.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    lines = (work / "loss" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row[TRAIN_LOSS] for row in map(json.loads, lines) if TRAIN_LOSS in row]


def compared(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the relative differences of the first step and of the means of 10 steps."""
    means = [
        [fmean(side[first : first + WINDOW]) for first in range(0, len(side), WINDOW)]
        for side in (ours, theirs)
    ]
    apart = [abs(a / b - 1) for a, b in zip(*means, strict=True)]
    return {
        "first_step": abs(ours[0] / theirs[0] - 1),
        "largest_of_means": max(apart),
        "ours": list(ours),
        "peer": list(theirs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--arms", nargs="*", choices=[*OURS, *PEERS], default=[*OURS, *PEERS[:-1]])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round-seconds", type=float, default=3.0, help="of each arm in a round")
    parser.add_argument("--loss-steps", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    configs = {name: resolve_run(None, [chosen.run_file], keys).config for name, keys in OURS.items()}
    for name, config in configs.items():
        resolved_path(work, name).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    config, resolved = configs["ours"], str(resolved_path(work, "ours"))
    segments = asdict(prepare(config).train.statistics)
    about: dict[str, Any] = {"run_file": chosen.run_file.read_text(), "segments": segments}
    count = max(MIN_MICROBATCHES, chosen.loss_steps * config.trainer.gradient_accumulation_steps)
    peer_module("own_rows", resolved, str(count), str(work / ROWS))
    if chosen.loss_steps:
        theirs = json.loads(
            peer_module("trl_arm", resolved, str(work / ROWS), "padding-free", str(chosen.loss_steps))
        )
        about["losses"] = compared(own_losses(work, config, chosen.loss_steps), theirs)
        parts = {name: about["losses"][name] for name in ("first_step", "largest_of_means")}
        print(f"loss of {chosen.loss_steps} steps, ours and TRL's: {parts}", flush=True)
    path = (chosen.output or work) / f"{config.task}-vs-trl.json"
    unit, target = "times the useful tokens/s of TRL, best form of each", 1.2
    if not chosen.arms:
        write_measurement(path, about["losses"]["largest_of_means"], "relative difference", 0.01, about)
        return
    rounds = contest(start, work, chosen.arms, chosen.rounds, chosen.round_seconds)
    for number, found in enumerate(rounds, 1):
        best, is_complete = found["ratios"].get("best", {}).get("ratio"), number == chosen.rounds
        write_measurement(path, best, unit, target, {**found, **about}, is_complete=is_complete)
    print(table(found))
    if set(found["arms"]) != set(found["tokens_per_second"]):
        sys.exit("not all arms ran")


if __name__ == "__main__":
    main()
