"""Facts of the devices, from the driver, the kernel log and a short load test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU, as reported by the driver."""

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory_total_mib: int
    memory_used_mib: int
    driver_version: str
    pci_bus_id: str = ""
    is_mig_enabled: bool | None = None
    processes: tuple[GpuProcessFacts, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcessFacts:
    """A process that computes on a GPU; `pid` is 0 in another container, `memory_mib` None if unknown."""

    pid: int
    name: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealthFacts:
    """Health of a GPU, as reported by the driver; a value is None if this GPU model does not report it.

    `retired_pages` is for models before Ampere, `remap_*` for later ones. `recovery_action` is `none` or the
    action that the driver recommends. Link bandwidths are nominal and one way.
    """

    index: int
    uuid: str
    is_ecc_enabled: bool | None
    uncorrected_errors: int | None
    retired_pages: int | None
    is_retirement_pending: bool | None
    is_remap_pending: bool | None
    has_remap_failed: bool | None
    recovery_action: str | None
    throttle_reasons: tuple[str, ...] | None
    pcie_generation: int | None
    pcie_generation_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    num_nvlinks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFacts:
    """One Xid error of a GPU in the kernel log."""

    code: int
    pci_bus_id: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLogFacts:
    """Xid errors in the kernel log, as far back as it goes; `source` is the program that read it."""

    source: str
    xids: tuple[XidFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoadFacts:
    """A GPU under a load of matrix products, with the throttle reasons of all samples."""

    index: int
    uuid: str
    num_samples: int
    duration_s: float
    throttle_reasons: tuple[str, ...]
