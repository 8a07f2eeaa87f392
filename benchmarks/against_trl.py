"""Causal training on packed documents: this trainer against TRL's SFTTrainer, in turns on one device.

    python benchmarks/against_trl.py RUN_FILE WORK [--arms ...] [--output DIR]

RUN_FILE is a run of `task: causal` with `model.config`. Ours is its step, as the file says and compiled; the
peer (`peers/trl_arm.py`) trains the same segments: padded by default, and padding-free on torch's varlen
kernel or on FlashAttention 4 by name. Turns, profiles and ratios are those of `against_trainer.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from against_trainer import OURS, contest, resolved_path, table
from measurement import write_measurement
from peers.turn_taking import Child

from neobert.config import to_dict
from neobert.data.store.prepare import prepare
from profiles.registry import resolve_run

PEERS = ("default", "padding-free", "padding-free, compiled", "padding-free, flash_attention_4")
"""Forms of `peers/trl_arm.py`."""


def start(work: Path, name: str, log: Any) -> Child:
    if name in OURS:
        return Child("own_arm", [str(resolved_path(work, name))], log)
    return Child("trl_arm", [str(resolved_path(work, "ours")), name], log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--arms", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS[:-1]])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--round-seconds", type=float, default=3.0, help="of each arm in a round")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    configs = {name: resolve_run(None, [chosen.run_file], keys).config for name, keys in OURS.items()}
    for name, config in configs.items():
        resolved_path(work, name).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    segments = asdict(prepare(configs["ours"]).train.statistics)
    about = {"run_file": chosen.run_file.read_text(), "segments": segments}
    rounds = contest(start, work, chosen.arms, chosen.rounds, chosen.round_seconds)
    for number, found in enumerate(rounds, 1):
        if chosen.output:
            best, path = found["ratios"].get("best", {}).get("ratio"), chosen.output / "causal-vs-trl.json"
            unit, is_complete = "times the useful tokens/s of TRL, best form of each", number == chosen.rounds
            write_measurement(path, best, unit, 1.2, {**found, **about}, is_complete=is_complete)
    print(table(found))
    if set(found["arms"]) != set(found["tokens_per_second"]):
        sys.exit("not all arms ran")


if __name__ == "__main__":
    main()
