"""What connects the GPUs of a node, and what that carries."""

from __future__ import annotations

from collections.abc import Sequence

from validators.facts_gpu import GpuHealthFacts

NVLINK_BYTES_PER_S = 25e9
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}


def slowest_link(devices: Sequence[GpuHealthFacts]) -> tuple[str, float] | None:
    """Name the link that carries least, and its bytes/s one way; None where any is not described."""
    links = [_link(device) for device in devices]
    known = [link for link in links if link is not None]
    return min(known, key=lambda link: link[1]) if known and len(known) == len(links) else None


def _link(gpu: GpuHealthFacts) -> tuple[str, float] | None:
    if gpu.num_nvlinks:
        return f"{gpu.num_nvlinks} NVLinks", gpu.num_nvlinks * NVLINK_BYTES_PER_S
    carries = pcie_bytes_per_s(gpu)
    if carries is not None:
        return f"{gpu.pcie_width} lanes of PCIe {gpu.pcie_generation_max}", carries
    return None


def pcie_bytes_per_s(gpu: GpuHealthFacts) -> float | None:
    """Return what the lanes in use carry one way, at the best generation; None where it is not described."""
    if gpu.pcie_generation_max in PCIE_LANE_BYTES_PER_S and gpu.pcie_width:
        return gpu.pcie_width * PCIE_LANE_BYTES_PER_S[gpu.pcie_generation_max]
    return None
