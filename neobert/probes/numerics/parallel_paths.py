"""Paths in processes of their own, as many at a time as cores and the device's memory allow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neobert.probes.numerics.path_checks import Setting, Variant, probe_path

CORES_PER_PATH = 2
BYTES_PER_PATH = 8 * 2**30
"""More than a path of width 768 needs, with its CUDA context and the compilers' memory."""


@dataclass(frozen=True, slots=True)
class ParallelPaths:
    """Probe the first path in this process and each other one in a child process at the same time."""

    resolved_file: Path

    def __call__(self, setting: Setting, variants: Sequence[Variant]) -> list[dict[str, Any]]:
        """Return the reports in the order of the variants."""
        first, *others = variants
        num_workers = min(len(others), num_at_once(setting.device))
        if num_workers < 2:
            return [probe_path(setting, variant) for variant in variants]
        with ThreadPoolExecutor(num_workers) as pool:
            # What compiles a graph takes longest, so it begins first.
            ordered = sorted(others, key=lambda variant: not variant.is_compiled)
            pending = {variant: pool.submit(self.probe, setting, variant) for variant in ordered}
            return [probe_path(setting, first), *(pending[variant].result() for variant in others)]

    def probe(self, setting: Setting, variant: Variant) -> dict[str, Any]:
        """Probe one path in a child process; a process that ends without a result is reported as an error.

        Its seconds have one phase more: `process`, from start to end with all the others in it.
        """
        started = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "neobert.probes", str(self.resolved_file),
             "--device", setting.device.type, "--path", variant.label],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )  # fmt: skip
        lines = ended.stdout.decode(errors="replace").strip().splitlines()
        if ended.returncode or not lines:
            stopped = {"error": f"its process ended with {ended.returncode} and no result"}
            return variant.unmeasured() | stopped
        found: dict[str, Any] = json.loads(lines[-1])
        found["durations_s"]["process"] = round(time.perf_counter() - started, 3)
        return found


def num_at_once(device: torch.device) -> int:
    """Return the number of paths that may be probed at the same time."""
    cores = len(os.sched_getaffinity(0)) // CORES_PER_PATH
    if device.type != "cuda":
        return cores
    free, _ = torch.cuda.mem_get_info(device)
    return min(cores, free // BYTES_PER_PATH)
