"""Device name, package versions, and peak FLOP/s measured with matrix products."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch

from neobert import __version__
from neobert.kernel_table import OPTIONAL_PACKAGES
from neobert.plurals import counted
from neobert.training.telemetry.stopwatch import Stopwatch

PACKAGES = ("torch", "transformers", "accelerate", *(package.name for package in OPTIONAL_PACKAGES))
GPU_SIZE, GPU_REPEATS = 8192, 10
CPU_SIZE, CPU_REPEATS = 1024, 5
PRODUCT = "product"


def package_versions(peers: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python, CUDA, neobert-launch and the installed packages: `PACKAGES`, `peers`."""
    found = {"python": platform.python_version(), "neobert-launch": __version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for package in (*PACKAGES, *peers):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or the CPU architecture and torch's number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {counted(torch.get_num_threads(), 'thread')}"


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a GPU as the driver formats it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the median FLOP/s of a series of square matrix products in `dtype`."""
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
