"""Seconds that `lint` takes for a folder of run files: python benchmarks/lint_files.py [--files 1000]"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measurement import write_measurement

TARGET_S = 5.0
ROOT = Path(__file__).parents[1]
PROFILES = ("a100-prod", "h100-prod", "h200-prod", "cpu-demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements" / "lint_seconds.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), asked.files)
        runs = [lint(folder) for _ in range(asked.repeats)]
    wall_s, cpu_s = min(runs)
    detail = {"files": asked.files, "repeats": asked.repeats, "cpu_s": round(cpu_s, 2)}
    write_measurement(asked.out, round(wall_s, 2), "s", TARGET_S, detail)
    print(f"{asked.files} files in {wall_s:.2f} s ({cpu_s:.2f} s of one core)")


def write_files(folder: Path, count: int) -> None:
    """Run files that differ, over several profiles."""
    for number in range(count):
        profile = PROFILES[number % len(PROFILES)]
        text = f"profile: {profile}\nseed: {number}\ntrainer:\n  output_dir: /data/runs/{number}\n"
        (folder / f"run-{number}.yaml").write_text(text, encoding="utf-8")


def lint(folder: str) -> tuple[float, float]:
    """Lint in a child; return its wall and processor time. Anything but a pass is no measurement."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "launcher", "lint", folder], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, used


if __name__ == "__main__":
    main()
