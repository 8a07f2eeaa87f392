"""Processor time of `--help` and of `lint` on one run file, relative to starting Python alone.

    python benchmarks/startup.py

The commands take turns with `python -c pass`, so a busy machine slows all of them. All use a bytecode cache,
even with PYTHONDONTWRITEBYTECODE. The exit code is 1 if a ratio exceeds its bar. A bar is about 10 % above
the value measured when it was set; lower it with each improvement.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

TURNS = 10
BARE = "bare Python"
BARS = {"--help": 8.0, "lint": 15.0}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.yaml")
        file.write_text("profile: a100-prod\ndataset: {path: text}\n", encoding="utf-8")
        launcher = ["-m", "launcher"]
        commands = {
            BARE: ["-c", "pass"],
            "--help": [*launcher, "--help"],
            "lint": [*launcher, "lint", str(file)],
        }
        turns = measure_in_turns(commands, Path(folder, "bytecode"))
        measured = {name: statistics.median(times) for name, times in turns.items()}
    ratios = {name: measured[name] / measured[BARE] for name in BARS}
    for name, ratio in ratios.items():
        print(
            f"{name}: {ratio:.1f} times a bare Python's {measured[BARE] * 1000:.0f} ms (limit {BARS[name]:g})"
        )
    return int(any(ratios[name] > bar for name, bar in BARS.items()))


def measure_in_turns(
    commands: dict[str, list[str]], bytecode: Path, turns: int = TURNS
) -> dict[str, list[float]]:
    """Return the processor seconds of each command in each turn; a first turn fills the caches."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode)}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        for name, arguments in commands.items():
            seconds = measure_processor_s([sys.executable, *arguments], environment)
            if turn:
                taken[name].append(seconds)
    return taken


def measure_processor_s(command: list[str], environment: dict[str, str]) -> float:
    """Return user and system time of a child that prints nothing. Raises RuntimeError if the child fails."""
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    pid = os.posix_spawn(command[0], command, environment, file_actions=null)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
