"""The rate of plain matrix products, measured beside the steps: the same power limit, the same neighbours."""

from __future__ import annotations

from statistics import median

import torch

from neobert.training.telemetry.stopwatch import Stopwatch

GPU_SIZE, GPU_REPEATS = 8192, 10
CPU_SIZE, CPU_REPEATS = 1024, 5
PRODUCT = "product"


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of square products in the run's compute type, the median of a burst."""
    is_on_gpu = device.type == "cuda"
    size, repeats = (GPU_SIZE, GPU_REPEATS) if is_on_gpu else (CPU_SIZE, CPU_REPEATS)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=generator) for _ in range(2))
    product = a @ b
    stopwatch = Stopwatch(device, (PRODUCT,))
    for _ in range(repeats):
        with stopwatch.step(), stopwatch.section(PRODUCT):
            torch.mm(a, b, out=product)
    if is_on_gpu:
        torch.cuda.synchronize(device)
    burst_ms = median(step[PRODUCT] for step in stopwatch.read().steps)
    return 2 * size**3 / burst_ms * 1000
