"""GPU rules: health of the devices, from the driver, the kernel log and a short load test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from neobert.plan import Plan
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, needed, rule

if TYPE_CHECKING:
    from validators.facts_gpu import GpuHealthFacts

PATH = "distributed.nproc_per_node"
OTHER_DEVICE = "choose another GPU with CUDA_VISIBLE_DEVICES, and have this one checked"
# From NVIDIA's catalogue of Xid errors: uncorrectable memory, failed row remapping, NVLink errors, a GPU that
# fell off the bus, and errors of the GPU system processor.
FATAL_XIDS = {
    48: "double-bit memory error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "system processor timeout",
    120: "system processor error",
}
RECENT_S = 24 * 3600.0
HARDWARE_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class OfDevice(Protocol):
    """Interface of facts that belong to a single GPU."""

    @property
    def index(self) -> int:
        """Return the index of the device in the driver's numbering."""


Device = TypeVar("Device", bound=OfDevice)


def used(devices: tuple[Device, ...] | None, run: ResolvedRun) -> tuple[Device, ...]:
    """Return the devices that the run uses on a node: the first, one per process."""
    return (devices or ())[: run.config.distributed.nproc_per_node]


@rule("GPU003", "failing-memory", severity=Severity.FAIL, level=Level.GPU, needs=("gpu_health",))
def failing_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU with failing memory, or one that needs a reset.

    ## What it does
    Fails if uncorrected memory errors were counted since the driver was loaded, if a row remapping or a page
    retirement is pending or failed, or if the driver recommends a recovery action. Warns for retired pages,
    and for a GPU that reports none of these counters.

    ## Why is this bad?
    Such a GPU works until the bad cell is read. Then the run crashes, or continues with a wrong number.

    ## Example
    ```text
    GPU 3: a row remapping is pending until a reset
    ```

    ## Use instead
    ```text
    run `nvidia-smi --gpu-reset -i 3` while nothing uses that GPU, or use another one
    ```
    """
    for gpu in used(facts.gpu_health, run):
        label = f"GPU {gpu.index}"
        for fault in _faults(gpu):
            yield Violation(PATH, f"{label}: {fault}", OTHER_DEVICE)
        if gpu.retired_pages and not gpu.is_retirement_pending:
            message = f"{label}: {counted(gpu.retired_pages, 'memory page')} retired"
            yield Violation(PATH, message, "replace the GPU if the number rises", Severity.WARN)
        if _reports_nothing(gpu):
            message = f"{label}: the driver reports no memory error counters for this model"
            yield Violation(PATH, message, "use a GPU with ECC memory for long runs", Severity.WARN)


def _faults(gpu: GpuHealthFacts) -> Iterator[str]:
    if gpu.uncorrected_errors:
        yield f"{counted(gpu.uncorrected_errors, 'uncorrected memory error')} since the driver was loaded"
    if gpu.is_retirement_pending:
        yield "a page retirement is pending until a reset"
    if gpu.is_remap_pending:
        yield "a row remapping is pending until a reset"
    if gpu.has_remap_failed:
        yield "a row remapping failed: no spare rows are left"
    if gpu.recovery_action not in (None, "none"):
        yield f"the driver recommends a recovery action: {gpu.recovery_action}"


def _reports_nothing(gpu: GpuHealthFacts) -> bool:
    counters = (gpu.uncorrected_errors, gpu.retired_pages, gpu.is_remap_pending, gpu.recovery_action)
    return all(value is None for value in counters)


@rule(
    "GPU004",
    "recent-device-error",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "gpu_log"),
    production_only=True,
)
def recent_device_error(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU with a fatal error in the kernel log of the last day.

    ## What it does
    Reads Xid errors from the kernel log: fails for 48, 63, 64, 74, 79, 94, 95, 119 and 120 of a visible GPU
    within the last day. Containers often cannot read that log; then the check is unknown, and a production
    run needs a waiver to start there.

    ## Why is this bad?
    Nearly every GPU that fails during a run has logged an error before.

    ## Example
    ```text
    NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
    ```

    ## Use instead
    ```yaml
    waivers:
      - {code: GPU004, reason: the node's own health check reads the log, expires: 2027-01-31}
    ```
    """
    log = needed(facts.gpu_log)
    devices = {_bus(gpu.pci_bus_id) for gpu in facts.gpus or () if gpu.pci_bus_id}
    for xid in log.xids:
        is_ours = not devices or _bus(xid.pci_bus_id) in devices
        if xid.code in FATAL_XIDS and xid.age_s <= RECENT_S and is_ours:
            ago = f"{xid.age_s / 3600:.1f} hours ago"
            message = f"GPU at {xid.pci_bus_id}: Xid {xid.code}, {FATAL_XIDS[xid.code]}, {ago}"
            yield Violation(PATH, message, OTHER_DEVICE)


def _bus(address: str) -> tuple[int, ...]:
    """Return domain, bus and device as numbers: the log has 0000:3b:00, the driver 00000000:3B:00.0."""
    return tuple(int(part, 16) for part in address.partition(".")[0].split(":"))


@rule(
    "GPU008",
    "throttled-gpu",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("gpu_load",),
    production_only=True,
)
def throttled_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU that is throttled by its hardware under load.

    ## What it does
    Multiplies matrices on all GPUs at once for a few seconds and reads the driver's throttle reasons. Warns
    about hardware reasons: temperature and power brake. The software power cap is normal at full
    load and is not reported.

    ## Why is this bad?
    The slowest GPU determines the speed of all. A failing fan or power supply can halve the speed of a
    cluster without any error.

    ## Example
    ```text
    GPU 5: hw_thermal_slowdown under load
    ```

    ## Use instead
    ```text
    a GPU with working cooling; `nvidia-smi -q -d PERFORMANCE` shows the current throttle reasons
    ```
    """
    for gpu in used(facts.gpu_load, run):
        throttled = [reason for reason in gpu.throttle_reasons if reason in HARDWARE_SLOWDOWNS]
        if throttled:
            yield Violation(PATH, f"GPU {gpu.index}: {', '.join(throttled)} under load", OTHER_DEVICE)
