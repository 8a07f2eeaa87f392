"""Train NeoBERT-250M with the real trainer on one GPU, once for each optimizer, in one run.

    python benchmarks/optimizers.py WORK_DIR [--steps 60] [--output DIR]
    python benchmarks/optimizers.py WORK_DIR --tiny --steps 12      # a dry run on any machine

T = 32,768 tokens a step in one microbatch: the least that a step of Muon is ever spread over. Kernels are
those that `auto` takes. Rates are the medians of the lines of `metrics.jsonl` in the second half of a run.
Figure: the tokens a second of Muon as a share of AdamW's; the clip's and the optimizers' own time stand in
the detail.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from made_up_run import FULL, TINY, run_config, write_run, write_text
from measurement import write_measurement
from trainer_throughput import median, train

from neobert.config import replace
from neobert.config.schema import RunConfig

NAMES = ("adamw", "muon", "muonclip")
RATE, PART = "train/tokens_per_sec", "time/optimizer_ms"
LOGGED_EVERY = 10
"""The interval of the clip, so that every line of metrics has one in it."""


def configure(config: RunConfig, name: str) -> RunConfig:
    for key, value in {"optimizer.name": name, "trainer.timing_breakdown": True}.items():
        config = replace(config, key, value)
    return config


def optimizer_ms(run_dir: Path) -> float | None:
    """Return the median time of the optimizer in a step, over the second half of a run."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    times = [line[PART] for line in lines if PART in line]
    return median(times[len(times) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    work, size = chosen.work.resolve(), TINY if chosen.tiny else FULL
    write_text(work, size)
    results: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        run_dir = work / f"{name}-{time.time_ns()}"
        every = 1 if chosen.tiny else LOGGED_EVERY
        config = run_config(work, run_dir, size, steps=chosen.steps, logging_steps=every)
        write_run(run_dir, configure(config, name))
        results[name] = train(run_dir)
        if "error" not in results[name]:
            results[name][PART] = optimizer_ms(run_dir)
        print(name, json.dumps(results[name], indent=1), flush=True)
    rates = {name: result.get(RATE) for name, result in results.items()}
    share = rates["muon"] / rates["adamw"] if rates["muon"] and rates["adamw"] else None
    print({**rates, "muon / adamw": share})
    if chosen.output:
        unit = "tokens/s of muon / tokens/s of adamw, T = 32,768"
        write_measurement(chosen.output / "muon-against-adamw.json", share, unit, None, results)


if __name__ == "__main__":
    main()
