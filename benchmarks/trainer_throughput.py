"""Throughput of the real trainer for NeoBERT-250M on one GPU, once for each kernel backend, in one run.

    python benchmarks/trainer_throughput.py WORK_DIR                       # fused, triton, torch
    python benchmarks/trainer_throughput.py WORK_DIR --kernels triton --steps 100 --output DIR
    python benchmarks/trainer_throughput.py WORK_DIR --row-length 4096     # full rows, one document each
    python benchmarks/trainer_throughput.py WORK_DIR --tiny                # a dry run on any machine

Synthetic documents (`made_up_run.py`), tokenised and packed by the project into T = 32,768; every run reads
the same prepared data. Each is `python -m neobert.train` in its own process. Tokens/s, MFU and the wait for
data are the medians of the lines of `metrics.jsonl` in the second half of the run, after compilation; MFU is
relative to the data sheet's peak. A short run before (--steps 4) fills the compilers' caches. With --output,
`trainer-throughput.json` and `data-wait-share.json` hold the figures of the fastest backend.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from made_up_run import FULL, PACKED_LENGTH, TINY, run_config, write_run, write_text
from measurement import write_measurement

from launcher.rundir.records import last_beat
from neobert.runfiles.run_dir import METRICS
from neobert.training.telemetry.jsonl_writer import read_rows

Line = dict[str, Any]

KERNELS = {
    "fused": {"kernel_backend": "fused"},
    "triton": {"kernel_backend": "triton"},
    "torch": {"kernel_backend": "torch", "attn_backend": "auto"},
}
MEDIANS = ("train/tokens_per_sec", "perf/mfu", "time/step_ms", "time/data_wait_ms", "perf/data_wait_share")
TARGET_TOKENS_PER_SECOND = {1024: 375_000}
TARGET_DATA_WAIT_SHARE = 0.01


def train(run_dir: Path) -> dict[str, Any]:
    """Run the trainer in its own process; return a summary of its metrics."""
    command = [sys.executable, "-m", "neobert.train", str(run_dir / "resolved.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    (run_dir / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        return {"error": (done.stdout + done.stderr)[-3000:]}
    return {
        "kernels": next((line for line in done.stdout.splitlines() if "kernels: " in line), ""),
        **{name: last_beat(run_dir, 0).get(name) for name in ("attention_kernel", "gpu_mem_reserved_mib")},
        **summary([line for line in read_rows(run_dir / METRICS) if "train/loss" in line]),
    }


def summary(lines: list[Line]) -> dict[str, Any]:
    """Summarize the lines of a run: medians over its second half, and the curves of loss and speed."""
    late = [line for line in lines if line["step"] > lines[-1]["step"] // 2]
    return {
        **{name: median([line[name] for line in late]) for name in MEDIANS},
        "losses": [line["train/loss"] for line in lines],
        "tokens_per_sec": [line["train/tokens_per_sec"] for line in lines],
    }


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None


def write_figures(
    folder: Path, results: dict[str, Any], row_length: int, *, is_complete: bool = True
) -> None:
    """Write the speed of the fastest backend and its wait for data, with all backends in the details."""
    ran = {name: result for name, result in results.items() if "error" not in result}
    best = max(ran.values(), key=lambda result: result["train/tokens_per_sec"], default=None)
    suffix = "" if row_length == PACKED_LENGTH else f"-{row_length}"
    detail = {"row_length": row_length, "runs": results}
    write_measurement(
        folder / f"trainer-throughput{suffix}.json",
        best and best["train/tokens_per_sec"],
        "tokens/s of `python -m neobert.train`, NeoBERT-250M, T = 32,768",
        TARGET_TOKENS_PER_SECOND.get(row_length),
        detail,
        is_complete=is_complete,
    )
    write_measurement(
        folder / f"data-wait-share{suffix}.json",
        best and best["perf/data_wait_share"],
        "share of a step's time",
        TARGET_DATA_WAIT_SHARE,
        detail,
        is_complete=is_complete,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--row-length", type=int, default=PACKED_LENGTH)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path, help="folder of the JSON files")
    chosen = parser.parse_args()
    work, size = chosen.work.resolve(), TINY if chosen.tiny else FULL
    write_text(work, size, chosen.row_length)
    results = {}
    for name in chosen.kernels:
        run_dir = work / f"{name}-{chosen.row_length}-{time.time_ns()}"
        write_run(
            run_dir,
            run_config(
                work,
                run_dir,
                size,
                steps=chosen.steps,
                row_length=chosen.row_length,
                logging_steps=1 if chosen.tiny else 10,
                **KERNELS[name],
            ),
        )
        results[name] = train(run_dir)
        print(name, json.dumps(results[name], indent=1), flush=True)
        if chosen.output:
            is_complete = len(results) == len(chosen.kernels)
            write_figures(chosen.output, results, chosen.row_length, is_complete=is_complete)


if __name__ == "__main__":
    main()
