"""Ranks that outlive the torchrun that started them: nobody watches them, and they write to the same run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from launcher.process import trainer_process

KILL_PATIENCE_S = 3.0
AGENT = "torch.distributed.run"
# torchrun names itself to its ranks by this. A trainer that it did not start holds the run directory's lock.
STARTED_BY_AGENT = "TORCHELASTIC_RUN_ID"


def end_orphans(resolved: Path, grace_s: float) -> tuple[int, int]:
    """End ranks of a resolved config that have no torchrun; return how many there were, and how many stay.

    They may save first, as long as is allowed. What stays hangs in the kernel, and holds its device.
    """
    found = [each for each in psutil.process_iter() if _is_orphan(each, str(resolved))]
    for each in found:
        with suppress(psutil.Error):
            each.terminate()
    alive = psutil.wait_procs(found, timeout=grace_s)[1]
    for each in alive:
        with suppress(psutil.Error):
            each.kill()
    return len(found), len(psutil.wait_procs(alive, timeout=KILL_PATIENCE_S)[1])


def _is_orphan(candidate: psutil.Process, resolved: str) -> bool:
    try:
        words = candidate.cmdline()
        if trainer_process.TRAINER_MODULE not in words or resolved not in words or AGENT in words:
            return False
        parent = candidate.parent()
        has_agent = parent is not None and AGENT in parent.cmdline()
        return not has_agent and STARTED_BY_AGENT in candidate.environ()
    except psutil.Error:  # it has just ended, or is somebody else's
        return False
