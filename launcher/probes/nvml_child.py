"""Ask NVML for the devices and print them as JSON. Runs in a process of its own, which the probe may kill."""

from __future__ import annotations

import importlib
import importlib.util
import json
from typing import Any

MIB = 2**20


def read_devices() -> dict[str, Any]:
    """`bindings`: whether nvidia-ml-py is there; `error`: what NVML said; `devices`: one mapping each."""
    if importlib.util.find_spec("pynvml") is None:
        return {"bindings": False, "error": "", "devices": []}
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        devices = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return {"bindings": True, "error": str(error), "devices": []}
    return {"bindings": True, "error": "", "devices": devices}


def _device(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "index": index,
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "name": nvml.nvmlDeviceGetName(handle),
        "compute_capability": nvml.nvmlDeviceGetCudaComputeCapability(handle),
        "memory_total_mib": memory.total // MIB,
        "memory_used_mib": memory.used // MIB,
        "driver_version": nvml.nvmlSystemGetDriverVersion(),
    }


if __name__ == "__main__":
    print(json.dumps(read_devices()))
