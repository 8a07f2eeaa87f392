"""Device memory of a process outside the allocator: contexts and loaded modules."""

from __future__ import annotations

import importlib
import importlib.util
import os

import torch

from neobert.bench.surroundings import gpu_uuid
from neobert.training.telemetry.memory import BYTES_PER_MIB


def context_of(device: torch.device) -> tuple[int, bool]:
    """Return the MiB, and whether they are this process's own; else others on the device count as well."""
    reserved, own = torch.cuda.memory_reserved(device), own_bytes(gpu_uuid(device))
    if own is not None:
        return (own - reserved) // BYTES_PER_MIB, True
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - reserved) // BYTES_PER_MIB, False


def own_bytes(uuid: str) -> int | None:
    """Ask the driver what it counts for this process; None where it does not say, as in some containers."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
    return next((each.usedGpuMemory for each in running if each.pid == os.getpid()), None)
