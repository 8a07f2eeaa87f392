"""Peak memory of `data prepare` on one very long text: the resident memory of all its processes, summed.

    python benchmarks/prepare_memory.py WORK_DIR                       # 100 MB of words in one line of a .txt
    python benchmarks/prepare_memory.py WORK_DIR --kind jsonl --mb 20  # one JSON document
    python benchmarks/prepare_memory.py WORK_DIR --output DIR          # writes prepare-one-line-memory.json

The words are drawn from a fixed seed; a WordPiece of 4,096 entries is trained on the text first. Shared pages
count for each process that has them, so the sum is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from measurement import write_measurement

SAMPLE_S = 0.05
MIB = 2**20
TARGET_MIB = 1e9 / MIB


def write_text(path: Path, size_bytes: int, kind: str) -> None:
    """Write words of 2 to 9 letters in one line, in pieces."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    head, tail = ('{"text": "', '"}') if kind == "jsonl" else ("", "")
    written = 0
    with path.open("w", encoding="ascii") as file:
        file.write(head)
        while written < size_bytes:
            written += file.write(" ".join(draw.choices(words, k=100_000)) + " ")
        file.write(tail)


def peak_of(command: list[str], log: Path) -> dict[str, Any]:
    """Run a command, and sample the memory of its processes."""
    start = time.monotonic()
    peak_bytes, largest_bytes = 0, 0
    with log.open("w", encoding="utf-8") as output:
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            sizes = [resident_bytes(each) for each in family(process)]
            peak_bytes, largest_bytes = max(peak_bytes, sum(sizes)), max(largest_bytes, *sizes)
            time.sleep(SAMPLE_S)
    return {
        "exit_code": process.returncode,
        "peak_mib": peak_bytes / MIB,
        "largest_process_mib": largest_bytes / MIB,
        "seconds": time.monotonic() - start,
    }


def family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def prepare_command(text: Path, work: Path) -> list[str]:
    values = {
        "dataset.name": "null",
        "dataset.path": text,
        "dataset.eval_samples": "null",
        "dataset.cache_dir": work / f"cache-{time.time_ns()}",
    }
    return [
        *(sys.executable, "-m", "launcher", "data", "prepare", "--profile", "cpu-demo"),
        *(f"--set={key}={value}" for key, value in values.items()),
        *("--output-format", "json"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--mb", type=float, default=100.0, help="size of the text in 1,000,000 bytes")
    parser.add_argument("--kind", choices=("txt", "jsonl"), default="txt")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    asked = parser.parse_args()
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    text = work / f"one-line.{asked.kind}"
    write_text(text, int(asked.mb * 1e6), asked.kind)
    result = peak_of(prepare_command(text, work), work / "output.txt") | {"text_bytes": text.stat().st_size}
    print(json.dumps(result, indent=1))
    if asked.output and result["exit_code"] == 0:
        unit = "MiB of resident memory, all processes"
        figure = asked.output / "prepare-one-line-memory.json"
        write_measurement(figure, result["peak_mib"], unit, TARGET_MIB, result)


if __name__ == "__main__":
    main()
