"""Ranks that outlive the process that started them: nobody watches them, and they write to the same run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from launcher import process

KILL_PATIENCE_S = 3.0


def end_orphans(resolved: Path, grace_s: float) -> tuple[int, int]:
    """End what trains by a resolved config that is ours alone; return how many there were, and how many stay.

    They may save first, as long as is allowed. What stays hangs in the kernel, and holds its device.
    """
    found = [each for each in psutil.process_iter() if _trains(each, str(resolved))]
    for each in found:
        with suppress(psutil.Error):
            each.terminate()
    alive = psutil.wait_procs(found, timeout=grace_s)[1]
    for each in alive:
        with suppress(psutil.Error):
            each.kill()
    return len(found), len(psutil.wait_procs(alive, timeout=KILL_PATIENCE_S)[1])


def _trains(candidate: psutil.Process, resolved: str) -> bool:
    try:
        words = candidate.cmdline()
    except psutil.Error:
        return False
    return process.TRAINER_MODULE in words and resolved in words
