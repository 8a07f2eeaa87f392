"""Orphaned ranks: they outlived their torchrun, are unsupervised, and still write to the run directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from launcher.process import trainer_process

KILL_PATIENCE_S = 3.0
AGENT = "torch.distributed.run"
# torchrun sets this for its ranks. A trainer without it holds the lock of the run directory.
STARTED_BY_AGENT = "TORCHELASTIC_RUN_ID"


def end_orphans(resolved: Path, grace_s: float) -> tuple[int, int]:
    """Stop ranks of a resolved config that have no torchrun; return their number, and how many survived.

    They may save first, within `grace_s`. A survivor hangs in the kernel and holds its device.
    """
    orphans = [each for each in psutil.process_iter() if _is_orphan(each, str(resolved))]
    for each in orphans:
        with suppress(psutil.Error):
            each.terminate()
    alive = psutil.wait_procs(orphans, timeout=grace_s)[1]
    for each in alive:
        with suppress(psutil.Error):
            each.kill()
    return len(orphans), len(psutil.wait_procs(alive, timeout=KILL_PATIENCE_S)[1])


def _is_orphan(candidate: psutil.Process, resolved: str) -> bool:
    try:
        arguments = candidate.cmdline()
        if trainer_process.TRAINER_MODULE not in arguments or resolved not in arguments or AGENT in arguments:
            return False
        parent = candidate.parent()
        has_agent = parent is not None and AGENT in parent.cmdline()
        return not has_agent and STARTED_BY_AGENT in candidate.environ()
    except psutil.Error:  # it has just ended, or belongs to another user
        return False
