"""Memory use of the process and its GPU, for heartbeats and metrics. Whole MiB; GiB are MiB / 1024."""

from __future__ import annotations

import psutil
import torch

from neobert.units import BYTES_PER_MIB, MIB_PER_GIB

Reading = dict[str, int | float | None]


def memory_fields(device: torch.device) -> Reading:
    """Return GPU and host memory of this process as heartbeat fields. Without a GPU, GPU fields are None."""
    host_rss_mib = psutil.Process().memory_info().rss // BYTES_PER_MIB
    return gpu_fields(*gpu_bytes(device)) | {"host_rss_mib": host_rss_mib}


def allocator_fields(device: torch.device) -> Reading:
    """Return the CUDA allocator's retries, out-of-memory errors and peak use, or None for each on a CPU."""
    counts = torch.cuda.memory_stats(device) if device.type == "cuda" else {}
    return {
        "memory/alloc_retries": counts.get("num_alloc_retries"),
        "memory/out_of_memory": counts.get("num_ooms"),
        "memory/peak_percent": peak_percent(device),
    }


def peak_percent(device: torch.device) -> float | None:
    """Return peak allocated memory as a percentage of device memory, or None on a CPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return 100 * torch.cuda.max_memory_allocated(device) / total


def gpu_bytes(device: torch.device) -> tuple[int | None, int | None, int | None]:
    """Return the bytes allocated, reserved by the allocator, and on the device, or None for each on a CPU."""
    if device.type != "cuda":
        return None, None, None
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), total


def gpu_fields(allocated: int | None, reserved: int | None, total: int | None) -> Reading:
    """Convert GPU memory from bytes to heartbeat fields in MiB and GiB; None stays None."""
    return {
        "gpu_mem_alloc_mib": _to_mib(allocated),
        "gpu_mem_alloc_gib": _to_gib(allocated),
        "gpu_mem_reserved_mib": _to_mib(reserved),
        "gpu_mem_reserved_gib": _to_gib(reserved),
        "gpu_mem_total_mib": _to_mib(total),
    }


def _to_mib(num_bytes: int | None) -> int | None:
    return None if num_bytes is None else num_bytes // BYTES_PER_MIB


def _to_gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes // BYTES_PER_MIB / MIB_PER_GIB
