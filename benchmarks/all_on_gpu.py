"""All benchmarks of one GPU in one command: JSON files, a log of each benchmark, and a table at the end.

    python benchmarks/all_on_gpu.py OUT [--only step parity ...] [--work DIR]

A benchmark that fails or exceeds its time limit leaves a log, and the others still run. The table marks
missing figures, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Benchmark:
    """A script with its arguments, the figures that it must write, and its time limit."""

    script: str
    arguments: tuple[str, ...]
    figures: tuple[str, ...]
    limit_s: int


WORK = "WORK"
BENCHMARKS = {
    "step": Benchmark(
        "step_throughput.py",
        ("--only", "fused-compiled", "packed-triton", "varlen", "--lengths", "packed"),
        ("pretrain-1024-mfu",),
        240,
    ),
    "step-4096": Benchmark(
        "step_throughput.py",
        ("--only", "fused-flash4-compiled", "flash4-triton", "varlen", "--lengths", "4096"),
        ("pretrain-4096-mfu",),
        240,
    ),
    "trainer": Benchmark(
        "trainer_throughput.py", (WORK, "--steps", "120"), ("trainer-throughput", "data-wait-share"), 300
    ),
    "trainer-4096": Benchmark(
        "trainer_throughput.py",
        (WORK, "--steps", "80", "--row-length", "4096", "--kernels", "fused", "triton"),
        ("trainer-throughput-4096", "data-wait-share-4096"),
        240,
    ),
    "parity": Benchmark("loss_parity.py", (WORK,), ("loss-parity",), 400),
    "saving": Benchmark(
        "checkpoint_stall.py", (WORK,), ("checkpoint-stall", "checkpoint-write", "checkpoint-overhead"), 420
    ),
    "modernbert": Benchmark(
        "against_modernbert.py",
        (WORK, "--seconds", "540"),
        ("vs-hf-concatenated", "vs-hf-padded", "vs-hf-flattened"),
        580,
    ),
}


def run(name: str, benchmark: Benchmark, out: Path, work: Path) -> float:
    """Run a benchmark with its output in a log; return its duration in seconds."""
    arguments = [str(work) if argument == WORK else argument for argument in benchmark.arguments]
    command = [sys.executable, str(HERE / benchmark.script), *arguments, "--output", str(out)]
    started_s = time.monotonic()
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            child.wait(benchmark.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # its children would occupy the GPU
            child.wait()
            log.write(f"\nno end within {benchmark.limit_s} s\n")
    return time.monotonic() - started_s


def row(out: Path, figure: str, started: float) -> tuple[str, bool]:
    """Return the table row of a figure, and whether this session measured it."""
    path = out / f"{figure}.json"
    if not path.exists() or path.stat().st_mtime < started:
        return f"{figure:28}{'missing':>14}", False
    found = json.loads(path.read_text(encoding="utf-8"))
    value = "none" if found["value"] is None else f"{found['value']:,.4g}"
    target = "" if found["target"] is None else f"{found['target']:,.4g}"
    is_whole = found.get("is_complete", True) and found["value"] is not None
    note = "" if found.get("is_complete", True) else " (cut short)"
    return f"{figure:28}{value:>14}{target:>12}  {found['unit']}{note}", is_whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the JSON files and logs")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--work", type=Path, help="folder of documents and runs; default OUT/work")
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    work = (chosen.work or out / "work").resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines, is_whole = [f"{'figure':28}{'value':>14}{'target':>12}"], True
    for name in chosen.only:
        started = time.time()
        seconds = run(name, BENCHMARKS[name], out, work)
        print(f"{name}: {seconds:.0f} s", flush=True)
        for figure in BENCHMARKS[name].figures:
            text, is_there = row(out, figure, started)
            lines.append(text)
            is_whole &= is_there
    print("\n".join(lines))
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
