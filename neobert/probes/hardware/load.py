"""Probe of throttling: the driver's reasons for lower clocks while all devices compute matrix products.

`python -m neobert.probes.hardware.load NUM_DEVICES` prints one JSON object: `{"devices": [...]}`, or
`{"error": "..."}` where NVML is not available.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from neobert.bench.device import gpu_uuid
from neobert.errors import EXIT_OK
from neobert.plan.hardware import throttle_reasons
from neobert.train import exit_process

DURATION_S = 4.0
WARM_UP_S = 1.0
SIZE = 8192
PRODUCTS_AT_ONCE = 8


def main(arguments: Sequence[str]) -> None:
    """Print the throttle reasons of each device under load as JSON, or the NVML error."""
    if importlib.util.find_spec("pynvml") is None:
        print(json.dumps({"error": "nvidia-ml-py is not installed: pip install nvidia-ml-py"}))
        return
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        print(
            json.dumps(
                {"devices": watch_under_load(nvml, [GpuLoad(index) for index in range(int(arguments[0]))])}
            )
        )
    except nvml.NVMLError as error:
        print(json.dumps({"error": f"NVML: {error}"}))


class GpuLoad:
    """Matrix products on one device, with a bounded queue."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self.uuid = gpu_uuid(self.device)
        self.index = index
        self._left = torch.randn(SIZE, SIZE, device=self.device, dtype=torch.bfloat16)
        self._out = torch.empty_like(self._left)

    def enqueue(self) -> None:
        """Queue `PRODUCTS_AT_ONCE` matrix products without waiting for them."""
        with torch.cuda.device(self.device):
            for _ in range(PRODUCTS_AT_ONCE):
                torch.mm(self._left, self._left, out=self._out)

    def wait(self) -> None:
        """Wait for the queued products."""
        torch.cuda.synchronize(self.device)


def watch_under_load(
    nvml: Any, loads: Sequence[GpuLoad], duration_s: float = DURATION_S
) -> list[dict[str, Any]]:
    """Load all devices for `duration_s`; return the throttle reasons of each, sampled after a warm-up."""
    handles = [nvml.nvmlDeviceGetHandleByUUID(load.uuid) for load in loads]
    seen: list[set[str]] = [set() for _ in loads]
    num_samples, started = 0, time.monotonic()
    while (elapsed_s := time.monotonic() - started) < duration_s:
        for load in loads:
            load.enqueue()
        if elapsed_s >= WARM_UP_S * duration_s / DURATION_S:
            num_samples += 1
            for reasons, handle in zip(seen, handles, strict=True):
                reasons.update(throttle_reasons(nvml, handle))
        for load in loads:
            load.wait()
    return [
        {
            "index": nvml.nvmlDeviceGetIndex(handle),
            "uuid": load.uuid,
            "num_samples": num_samples,
            "duration_s": round(time.monotonic() - started, 3),
            "throttle_reasons": sorted(reasons),
        }
        for load, handle, reasons in zip(loads, handles, seen, strict=True)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
    exit_process(EXIT_OK)
