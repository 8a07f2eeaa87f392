"""Facts of the devices: what the driver, the kernel's log and a short load say of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One device, as the driver reports it."""

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
    """A process that computes on a device. Pid 0: of another container; memory None: not told."""

    pid: int
    name: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealthFacts:
    """What the driver says of a device's condition. None: this model does not report it.

    `retired_pages` is of models before Ampere, `remap_*` of those since. `recovery_action` is `none` or what
    the driver asks for. Bandwidths of links are nominal and one way.
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
    """One error of a device in the kernel's log."""

    code: int
    pci_bus_id: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLogFacts:
    """The kernel's log, read back to its beginning or as far as it is kept."""

    source: str
    xids: tuple[XidFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoadFacts:
    """A device under matrix products: the reasons to slow down that were seen at any of the samples."""

    index: int
    uuid: str
    num_samples: int
    duration_s: float
    throttle_reasons: tuple[str, ...]
