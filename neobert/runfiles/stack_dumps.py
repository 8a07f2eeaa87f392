"""Python stacks on request, written by a C-level handler that needs no GIL."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

SIGNAL = signal.SIGUSR2


def stacks_path(run_dir: Path, rank: int) -> Path:
    """Name the file that a rank's stacks go to."""
    return run_dir / "logs" / f"rank_{rank}.stacks"


def dump_on_request(path: Path) -> None:
    """Append the stacks of all threads to a file at every SIGUSR2, for as long as the process lives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(SIGNAL, path.open("ab", buffering=0), all_threads=True)
