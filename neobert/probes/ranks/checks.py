"""Checks between the ranks of a run, under torchrun, before training.

`torchrun ... -m neobert.probes.ranks.checks RESOLVED.json FOLDER` writes `rank_<k>.json` for each rank that
finished, and `rank_<k>.stage` with the stage that each rank reached. Reports list the ranks that did not
respond.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import neobert
from neobert.atomic_write import write_atomically
from neobert.config import digest
from neobert.config.schema import RunConfig
from neobert.errors import EXIT_OK
from neobert.gc_policy import collect_rarely
from neobert.train import exit_process, read_config

TIMEOUT_S = 25.0
COLLECTIVE_LIMIT = timedelta(seconds=40)


@dataclass(frozen=True, slots=True)
class RankReport:
    """Report files of one rank: the stage that it reached, and its results.

    Attributes:
        folder: folder of the report files, shared by the ranks.
        reached_s: start time of each stage in seconds on the monotonic clock.
    """

    folder: Path
    rank: int
    reached_s: dict[str, float] = field(default_factory=dict)

    def enter_stage(self, stage: str) -> None:
        """Record the start of a stage, also in `rank_<k>.stage`, which names the stage after a hang."""
        self.reached_s[stage] = time.monotonic()
        (self.folder / f"rank_{self.rank}.stage").write_text(stage, encoding="utf-8")

    def durations_s(self) -> dict[str, float]:
        """Return the duration of each stage in seconds; the last stage ends now."""
        ends = [*self.reached_s.values(), time.monotonic()][1:]
        begun = self.reached_s.items()
        return {stage: round(end - start, 3) for (stage, start), end in zip(begun, ends, strict=True)}

    def finish(self, results: dict[str, Any]) -> None:
        """Write the results and the durations to `rank_<k>.json`, atomically."""
        content = json.dumps(results | {"durations_s": self.durations_s()})
        write_atomically(self.folder / f"rank_{self.rank}.json", content.encode())


def main(arguments: Sequence[str]) -> None:
    """Run the checks and write this rank's report. A rank that raises writes no report."""
    # torchrun ends all ranks when one dies; the others must report which one it was before they end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report = RankReport(Path(arguments[1]), int(os.environ["RANK"]))
    report.enter_stage("start")
    config = read_config(Path(arguments[0]))
    report.finish(check_ranks(config, report))


def check_ranks(config: RunConfig, report: RankReport) -> dict[str, Any]:
    """Wait for all ranks; if none is absent, test the barrier, collectives and a small model.

    Returns this rank's results. If ranks are absent, only `identity` and `absent` are set.
    """
    import torch.distributed as dist

    from neobert.probes.ranks.collectives import MonitoredBarrier

    store, rank, world_size = next(dist.rendezvous("env://"))
    barrier = MonitoredBarrier(dist.PrefixStore("neobert", store), rank, world_size)
    found: dict[str, Any] = {"identity": rank_identity(config, rank)}
    report.enter_stage("roll call")
    absent = barrier.wait("roll", TIMEOUT_S)
    found["absent"] = absent
    if absent:
        return found
    report.enter_stage("drill")
    found["drill_absent"], found["drill_s"] = barrier.self_test()
    return found | measure_ranks(config, report, store, rank, world_size)


def measure_ranks(
    config: RunConfig, report: RankReport, store: Any, rank: int, world_size: int
) -> dict[str, Any]:
    """Initialize the process group; run the checks that need all ranks and return their results by stage."""
    report.enter_stage("imports")
    import torch
    import torch.distributed as dist

    from neobert.parallel import World
    from neobert.precision.recipe import FP32
    from neobert.probes.ranks import collectives, replicas

    device = process_device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    report.enter_stage("process group")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_LIMIT,
    )
    stages: dict[str, Callable[[], Any]] = {
        "collectives": lambda: collectives.check_all_collectives(rank, world_size, device),
        "bus_bytes_per_s": lambda: collectives.bus_bytes_per_s(world_size, device),
        "has_peer_access": lambda: collectives.has_peer_access(world_size),
        "model": lambda: replicas.check_replicas(
            config, World(FP32, config.distributed.mode), report.folder / "weights.safetensors"
        ),
    }
    found: dict[str, Any] = {"backend": "nccl" if device.type == "cuda" else "gloo"}
    for name, work in stages.items():
        report.enter_stage(name)
        found[name] = work()
    report.enter_stage("end")
    dist.barrier()  # a rank that ends earlier would interrupt what another still receives
    return found


def process_device() -> Any:
    """Return this rank's device, the same as in training."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def rank_identity(config: RunConfig, rank: int) -> dict[str, Any]:
    """Return the rank's host, device, versions, and digests of config and code."""
    device = process_device()
    return {
        "rank": rank,
        "hostname": socket.gethostname(),
        "device": str(device),
        "config_digest": digest(config),
        "code_digest": code_digest(),
        "versions": library_versions(),
    }


def code_digest() -> str:
    """Return the SHA-256 of the source files of the `neobert` package that this rank imports."""
    root = Path(neobert.__file__).parent
    summed = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        summed.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return summed.hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of Python, packages, CUDA and NCCL, and the name of the GPU."""
    import accelerate
    import torch
    import transformers

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
    }
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpu"] = torch.cuda.get_device_name(process_device())
    return found


if __name__ == "__main__":
    collect_rarely()
    main(sys.argv[1:])
    exit_process(EXIT_OK)
