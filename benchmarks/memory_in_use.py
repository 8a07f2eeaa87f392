"""Memory of the ranks of a run, on the host and on the GPUs, while it trains."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from commands import output

HELD = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
"""Host memory of a process: the peak of all of it, and its parts; see proc(5)."""
IN_USE = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]


def in_use_mib() -> list[float]:
    """Return the memory of each GPU that is in use; none on a machine without GPUs."""
    if not torch.cuda.is_available():
        return []
    return [float(each) for each in output(IN_USE).split()]


@dataclass
class Watched:
    """Memory of the processes of a session.

    Attributes:
        host_mib: by rank, the largest of each of `HELD`.
        device_mib: of each GPU, the most that was in use beyond `idle_mib`, what was before.
    """

    host_mib: dict[str, dict[str, float]] = field(default_factory=dict)
    device_mib: list[float] = field(default_factory=list)
    idle_mib: list[float] = field(default_factory=in_use_mib)

    def look(self, child: psutil.Process) -> None:
        with suppress(psutil.Error, OSError):
            for process in child.children(recursive=True):
                self._look_at_host(process)
        with suppress(ValueError):  # the driver may show no number while a process ends
            used = [now - idle for now, idle in zip(in_use_mib(), self.idle_mib, strict=True)]
            self.device_mib = [max(pair) for pair in zip(used, self.device_mib or used, strict=True)]

    def _look_at_host(self, process: psutil.Process) -> None:
        words = process.cmdline()
        if "neobert.train" not in words or "torch.distributed.run" in words:
            return
        rank = process.environ().get("LOCAL_RANK", "0")
        held = self.host_mib.setdefault(rank, dict.fromkeys(HELD, 0.0))
        for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in held:
                held[name] = max(held[name], int(value.split()[0]) / 1024)
