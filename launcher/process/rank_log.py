"""Redirect a worker's output to `logs/rank_<k>.log`, then exec the worker. torchrun starts this per rank.

Usage: python -m launcher.process.rank_log LOG_DIR COMMAND...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from launcher.process.parent_death import dying_with_parent


def log_path(folder: Path, rank: int) -> Path:
    """Return the log file of a rank."""
    return folder / f"rank_{rank}.log"


def main(arguments: list[str]) -> None:
    """Redirect both streams and replace this process, so that signals reach the worker itself.

    If torchrun is killed, the kernel sends SIGTERM to the ranks, which then save and stop.
    """
    dying_with_parent(signal.SIGTERM)()
    folder, *command = arguments
    path = log_path(Path(folder), int(os.environ.get("RANK", "0")))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
