"""Links between the GPUs of a node, and their nominal bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validators.facts_gpu import GpuHealthFacts


NVLINK_BYTES_PER_S = 25e9
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}


def slowest_link(devices: Sequence[GpuHealthFacts]) -> tuple[str, float] | None:
    """Return the name and bytes/s (one way) of the slowest link; None if any is not described."""
    links = [_link(device) for device in devices]
    known = [link for link in links if link is not None]
    return min(known, key=lambda link: link[1]) if known and len(known) == len(links) else None


def _link(gpu: GpuHealthFacts) -> tuple[str, float] | None:
    if gpu.num_nvlinks:
        return f"{gpu.num_nvlinks} NVLinks", gpu.num_nvlinks * NVLINK_BYTES_PER_S
    bytes_per_s = pcie_bytes_per_s(gpu)
    if bytes_per_s is not None:
        return f"{gpu.pcie_width} lanes of PCIe {gpu.pcie_generation_max}", bytes_per_s
    return None


def pcie_bytes_per_s(gpu: GpuHealthFacts) -> float | None:
    """Return the one-way bytes/s of the lanes in use, at the best generation; None if not described."""
    if gpu.pcie_generation_max in PCIE_LANE_BYTES_PER_S and gpu.pcie_width:
        return gpu.pcie_width * PCIE_LANE_BYTES_PER_S[gpu.pcie_generation_max]
    return None
