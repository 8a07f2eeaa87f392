"""Share of a core that `watch` uses on a terminal, for a run of eight ranks that writes continuously.

    python benchmarks/watch_cost.py --output docs/measurements

The run directory is synthetic: a history of many lines, then five lines of metrics and a heartbeat of each
rank per second, ten times what a run writes. Processor time is counted after the first page, whose cost
(imports, and the whole history) is given next to it.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
import termios
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from measurement import write_measurement

TARGET_PERCENT = 2.0
RANKS = 8
LINES_PER_S = 5
ROWS, COLUMNS = 24, 80
CONFIG = {"task": "pretrain", "trainer": {"metric_for_best_model": "eval/loss"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--history", type=int, default=100_000, metavar="LINES")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_history(Path(folder), chosen.history)
        detail = measure(Path(folder), chosen.history, chosen.seconds)
    print(json.dumps(detail, indent=1))
    percent = detail["percent_of_a_core"]
    write_measurement(chosen.output / "watch-cost.json", percent, "% of a core", TARGET_PERCENT, detail)
    return int(percent > TARGET_PERCENT)


def write_history(folder: Path, lines: int) -> None:
    (folder / "resolved.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    manifest = {"hostname": "elsewhere", "started_utc": datetime.now(UTC).isoformat()}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(line_of(10 * number) for number in range(lines))
    write_beats(folder, 10 * lines)


def line_of(step: int) -> str:
    row = {
        "step": step, "train/loss": 3 + 100 / (step + 20), "train/learning_rate": 1e-4,
        "train/grad_norm": 1.0, "train/tokens_per_sec": 620_000.0 + step % 7000,
        "train/tokens_total": step * 65_536, "perf/mfu": 0.41,
        **{f"time/part_{number}_ms": 1.2345678 for number in range(12)},
    }  # fmt: skip
    if step % 1000 == 0:
        row |= {"eval/loss": 3.1, "eval/accuracy": 0.4, "eval/perplexity": 22.2}
    return json.dumps(row) + "\n"


def write_beats(folder: Path, step: int) -> None:
    for rank in range(RANKS):
        beat = {
            "ts_utc": datetime.now(UTC).isoformat(), "seq": step, "rank": rank,
            "phase": "train", "step": step,
            "max_steps": 2_000_000, "tokens_total": step * 65_536, "loss": 3.1, "mfu": 0.41, "eta_s": 3600.0,
            "gpu_mem_reserved_mib": 61_440, "gpu_mem_total_mib": 143_156, "data_wait_ms": 0.8,
            "last_checkpoint_step": 1000, "work_at_risk_min": 2.0,
        }  # fmt: skip
        with (folder / f"heartbeat_rank{rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(beat) + "\n")


def measure(folder: Path, first: int, seconds: float) -> dict[str, Any]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    command = [sys.executable, "-m", "launcher", "watch", str(folder)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    drawn = Drain(ours)
    try:
        while b"q quits" not in drawn.newest:
            time.sleep(0.05)
        process = psutil.Process(child.pid)
        start_s, begun_s, step = cpu_s(process), time.monotonic(), 10 * first
        while time.monotonic() - begun_s < seconds:
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(line_of(step := step + 10) for _ in range(LINES_PER_S))
            write_beats(folder, step)
            time.sleep(1.0)
        taken_s, elapsed_s = cpu_s(process) - start_s, time.monotonic() - begun_s
        memory_mib = process.memory_info().rss // 2**20
    finally:
        os.write(ours, b"q")
        child.wait(timeout=30)
    return {
        "percent_of_a_core": round(100 * taken_s / elapsed_s, 3),
        "seconds": round(elapsed_s, 1),
        "first_page_cpu_s": round(start_s, 2),
        "resident_memory_mib": memory_mib,
        "history_lines": first,
        "ranks": RANKS,
        "lines_per_second": LINES_PER_S,
        "terminal": f"{COLUMNS}x{ROWS}",
        "bytes_drawn_per_second": round(drawn.total / elapsed_s),
        "exit_code": child.returncode,
    }


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Drain:
    """Thread that reads the drawn output, as a terminal does."""

    def __init__(self, descriptor: int) -> None:
        self.newest, self.total = b"", 0
        threading.Thread(target=self._read, args=(descriptor,), daemon=True).start()

    def _read(self, descriptor: int) -> None:
        while chunk := os.read(descriptor, 65536):
            self.newest, self.total = (self.newest + chunk)[-65536:], self.total + len(chunk)


if __name__ == "__main__":
    sys.exit(main())
