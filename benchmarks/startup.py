"""Processor time of `--help` and of `lint` on one run file, relative to starting Python alone.

    python benchmarks/startup.py
    python benchmarks/startup.py --lint-files 1000 --output DIR    # seconds for a folder: lint_seconds.json

The commands take turns with `python -c pass`, so a busy machine slows all of them. All use a bytecode cache,
even with PYTHONDONTWRITEBYTECODE. The exit code is 1 above a bar. A bar is about 10 % above the value
measured when it was set; lower it with each improvement.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURNS = 10
BARE = "bare Python"
BARS = {"--help": 8.0, "lint": 15.0}
PROFILES = ("a100-prod", "h100-prod", "h200-prod", "cpu-demo")
FOLDER_TARGET_S, FOLDER_REPEATS = 5.0, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lint-files", type=int, help="measure `lint` of N run files instead")
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"))
    chosen = parser.parse_args()
    if chosen.lint_files:
        measure_folder(chosen.lint_files, chosen.output)
        return 0
    return hold_to_bars()


def hold_to_bars() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.yaml")
        file.write_text("profile: a100-prod\ndataset: {path: text}\n", encoding="utf-8")
        launcher = ["-m", "launcher"]
        commands = {
            BARE: ["-c", "pass"],
            "--help": [*launcher, "--help"],
            "lint": [*launcher, "lint", str(file)],
        }
        turns = taking_turns(commands, Path(folder, "bytecode"))
        measured = {name: statistics.median(times) for name, times in turns.items()}
    ratios = {name: measured[name] / measured[BARE] for name in BARS}
    for name, ratio in ratios.items():
        print(
            f"{name}: {ratio:.1f} times a bare Python's {measured[BARE] * 1000:.0f} ms (bar {BARS[name]:g})"
        )
    return int(any(ratios[name] > bar for name, bar in BARS.items()))


def taking_turns(
    commands: dict[str, list[str]], bytecode: Path, turns: int = TURNS
) -> dict[str, list[float]]:
    """Return the processor seconds of each command in each turn; a first turn fills the caches."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode)}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        for name, arguments in commands.items():
            seconds = processor_s([sys.executable, *arguments], environment)
            if turn:
                taken[name].append(seconds)
    return taken


def processor_s(command: list[str], environment: dict[str, str]) -> float:
    """Return user and system time of a child that prints nothing. Raises RuntimeError where it fails."""
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    pid = os.posix_spawn(command[0], command, environment, file_actions=null)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def measure_folder(num_files: int, output: Path) -> None:
    """Write the seconds of `lint` for a folder of run files over several profiles."""
    from measurement import write_measurement  # imports torch

    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_files):
            text = f"profile: {PROFILES[number % len(PROFILES)]}\nseed: {number}\n"
            text += f"trainer:\n  output_dir: /data/runs/{number}\n"
            Path(folder, f"run-{number}.yaml").write_text(text, encoding="utf-8")
        wall_s, cpu_s = min(lint(folder) for _ in range(FOLDER_REPEATS))
    detail = {"files": num_files, "repeats": FOLDER_REPEATS, "cpu_s": round(cpu_s, 2)}
    write_measurement(output / "lint_seconds.json", round(wall_s, 2), "s", FOLDER_TARGET_S, detail)
    print(f"{num_files} files in {wall_s:.2f} s ({cpu_s:.2f} s of one core)")


def lint(folder: str) -> tuple[float, float]:
    """Lint in a child; return its wall and processor time in seconds. Raises RuntimeError if a file fails."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "launcher", "lint", folder], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, used


if __name__ == "__main__":
    sys.exit(main())
