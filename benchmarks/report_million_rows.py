"""Seconds, size and memory of `report` for a run of a million rows of metrics.

    python benchmarks/report_million_rows.py --output docs/measurements

A run of a few steps creates the directory. Its history is then written by the trainer's own writer: a million
lines with the trainer's fields, an evaluation every thousand, and restarts that truncate the file as a resume
does.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from measurement import write_measurement

from launcher.run.launch_records import record_restart
from neobert.config.schema import DatasetConfig
from neobert.runfiles.run_dir import METRICS
from neobert.training.state.train_state import LastMetrics
from neobert.training.telemetry.jsonl_writer import JsonlWriter, iter_rows
from neobert.training.telemetry.metrics import fields
from neobert.training.telemetry.metrics_history import trim_metrics

NUM_ROWS, EVALUATION_EVERY, RESTARTS, LOST_ROWS = 1_000_000, 1000, 20, 500
LIMIT_S, LIMIT_MIB, LIMIT_MEMORY_MB = 10.0, 5.0, 500.0
TOKENS_PER_STEP = 262_144
REPEATS = 3
EVALUATED = {"eval/loss"}
# The peak of a child includes that of the process it was started from until it executes another program.
MEASURE = """
import os, sys, time
started = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], dict(os.environ))
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--output", type=Path, required=True, help="folder of the measurement")
    parser.add_argument("--run", type=Path, help="keep the run in this folder, and use it again if it exists")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = chosen.run or Path(folder, "run")
        if not run_dir.exists():
            train_briefly(run_dir)
            write_history(run_dir, chosen.rows)
        measured = min((report(run_dir) for _ in range(REPEATS)), key=lambda each: each["wall_s"])
    detail = {**measured, "rows": chosen.rows, "restarts": RESTARTS, "repeats": REPEATS}
    detail["load_average"] = os.getloadavg()[
        0
    ]  # load of the machine: above its number of cores, other processes slow this one down
    path = chosen.output / "report-million-rows.json"
    print(write_measurement(path, measured["wall_s"], "s", LIMIT_S, detail))
    is_within = measured["page_mib"] < LIMIT_MIB and measured["peak_memory_mb"] < LIMIT_MEMORY_MB
    return int(measured["wall_s"] >= LIMIT_S or not is_within)


def train_briefly(run_dir: Path) -> None:
    steps = [
        "trainer.max_steps=4",
        "trainer.save_steps=2",
        "trainer.eval_steps=0",
        "trainer.logging_steps=1",
        "scheduler.warmup_steps=2",
    ]
    overrides = [word for each in [*steps, f"trainer.output_dir={run_dir}"] for word in ("--set", each)]
    command = [sys.executable, "-m", "launcher", "train", "-p", "cpu-demo", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_history(run_dir: Path, num_rows: int) -> None:
    """Write the metrics; each restart truncates the rows since the last save and writes them again."""
    template = next(each for each in iter_rows(run_dir / METRICS) if not each.keys() & EVALUATED)
    (run_dir / METRICS).unlink()
    draw, place = random.Random(0), 0
    for number in range(1, RESTARTS + 2):
        end = num_rows * number // (RESTARTS + 1)
        writer = JsonlWriter(run_dir / METRICS)
        for step in range(place, end):
            writer.append(row(template, step, num_rows, draw))
        writer.close()
        if number <= RESTARTS:
            place = end - LOST_ROWS
            trim_metrics(run_dir, place)
            entry = {"why": "rank 0 was killed by SIGKILL", "step": end, "kind": "lost"}
            record_restart(run_dir, entry | {"from": f"checkpoint {place}"})


def row(template: dict[str, object], step: int, num_rows: int, draw: random.Random) -> dict[str, object]:
    """Return a line with every field of the trainer's, in its order."""
    loss = 2 + 6 * math.exp(-6 * step / num_rows) + draw.gauss(0, 0.1)
    reading = LastMetrics(
        loss=loss,
        learning_rate=1e-3 * (1 - step / num_rows),
        grad_norm=abs(draw.gauss(1, 0.3)),
        tokens_per_second=draw.gauss(350_000, 9_000),
        mfu=draw.gauss(0.46, 0.01),
        data_wait_ms=abs(draw.gauss(0.2, 0.1)),
        data_wait_p50_ms=0.1,
        data_wait_p95_ms=0.4,
        step_time_s=draw.gauss(0.75, 0.02),
    )
    state = SimpleNamespace(last_metrics=reading, recompiles=0, kernel_fallbacks=0, read_retries=0)
    trainer = SimpleNamespace(
        state=state,
        progress=SimpleNamespace(
            tokens_total=step * TOKENS_PER_STEP, cursor=SimpleNamespace(corpus_tokens=None)
        ),
        task=SimpleNamespace(epoch=lambda progress: progress.tokens_total / 1e11),
        qk_clip=None,
        config=SimpleNamespace(dataset=DatasetConfig()),
    )
    line = {**template, "step": step, **fields(trainer, 45 + draw.random())}
    line |= {"time/step_ms": 1000 * reading.step_time_s, "time/data_wait_ms": reading.data_wait_ms}
    if step % EVALUATION_EVERY == 0:
        line |= {"eval/loss": loss - 0.1, "eval/accuracy": 0.5, "eval/perplexity": math.exp(loss - 0.1)}
        line |= {"time/evaluation_ms": draw.gauss(20_000, 300)}
    return line


def report(run_dir: Path) -> dict[str, float]:
    """Run the command once; return seconds, size of the page and of the metrics, and its peak memory."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "launcher", "report", str(run_dir)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall_s, cpu_s, peak_kib = map(float, printed.splitlines()[-1].split())
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "page_mib": round((run_dir / "report.html").stat().st_size / 2**20, 2),
        "metrics_mib": round((run_dir / METRICS).stat().st_size / 2**20),
        "peak_memory_mb": round(peak_kib * 1024 / 1e6),
    }


if __name__ == "__main__":
    sys.exit(main())
