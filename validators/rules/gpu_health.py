"""GPU, condition: what the driver, the kernel's log and a short load say of the devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_gpu import GpuHealthFacts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

PATH = "distributed.nproc_per_node"
OTHER_DEVICE = "choose another device, and have this one looked at"
# NVIDIA's catalogue of Xid errors: memory that cannot be corrected or remapped, NVLink, a GPU that fell off
# the bus, and a GPU system processor that does not answer.
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
    """Facts of one device."""

    @property
    def index(self) -> int:
        """Number that the driver gives it."""


Device = TypeVar("Device", bound=OfDevice)


def used(devices: tuple[Device, ...] | None, run: ResolvedRun) -> tuple[Device, ...]:
    """Those that the processes of a node take: the first ones."""
    return (devices or ())[: run.config.distributed.nproc_per_node]


@rule("GPU003", "failing-memory", severity=Severity.FAIL, level=Level.GPU, needs=("gpu_health",))
def failing_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU whose memory is failing, or which the driver asks to be reset.

    ## What it does
    Fails where uncorrected memory errors were counted since the driver was loaded, where a row remapping
    or the retirement of a page waits for a reset or has failed, and where the driver asks for a recovery.
    Warns for pages that were retired, and for a card that reports none of this.

    ## Why is this bad?
    A GPU in this state works until the bad cell is read. Then the run dies, or goes on with a wrong number.

    ## Example
    ```text
    GPU 3: a row remapping waits for a reset
    ```

    ## Use instead
    ```text
    nvidia-smi --gpu-reset -i 3, with nothing running on it; or another GPU
    ```
    """
    for gpu in used(facts.gpu_health, run):
        label = f"GPU {gpu.index}"
        for fault in _faults(gpu):
            yield Violation(PATH, f"{label}: {fault}", OTHER_DEVICE)
        if gpu.retired_pages and not gpu.is_retirement_pending:
            message = f"{label}: {gpu.retired_pages} pages of memory were retired"
            yield Violation(PATH, message, "watch it: it has failed before", Severity.WARN)
        if _tells_nothing(gpu):
            message = f"{label}: the driver reports no memory errors of this card"
            yield Violation(PATH, message, "long runs want a card with ECC", Severity.WARN)


def _faults(gpu: GpuHealthFacts) -> Iterator[str]:
    if gpu.uncorrected_errors:
        yield f"{gpu.uncorrected_errors} uncorrected memory errors since the driver was loaded"
    if gpu.is_retirement_pending:
        yield "the retirement of a page of memory waits for a reset"
    if gpu.is_remap_pending:
        yield "a row remapping waits for a reset"
    if gpu.has_remap_failed:
        yield "a row remapping has failed: no spare rows are left"
    if gpu.recovery_action not in (None, "none"):
        yield f"the driver asks for a recovery: {gpu.recovery_action}"


def _tells_nothing(gpu: GpuHealthFacts) -> bool:
    told = (gpu.uncorrected_errors, gpu.retired_pages, gpu.is_remap_pending, gpu.recovery_action)
    return all(value is None for value in told)


@rule(
    "GPU004",
    "recent-device-error",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus", "gpu_log"),
    production_only=True,
)
def recent_device_error(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU with a fatal error in the kernel's log of the last day.

    ## What it does
    Reads Xid errors from the kernel's log: 48, 63, 64, 74, 79, 94, 95, 119 and 120 fail when they are of one
    of the visible GPUs and less than a day old. A container often may not read that log; then the check
    is unknown, and a production run that has to start there says who answers for it.

    ## Why is this bad?
    Nearly every GPU that dies under a run has said so before.

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
    log = facts.gpu_log
    assert log is not None
    places = {_bus(gpu.pci_bus_id) for gpu in facts.gpus or () if gpu.pci_bus_id}
    for xid in log.xids:
        is_ours = not places or _bus(xid.pci_bus_id) in places
        if xid.code in FATAL_XIDS and xid.age_s <= RECENT_S and is_ours:
            ago = f"{xid.age_s / 3600:.1f} hours ago"
            message = f"GPU at {xid.pci_bus_id}: Xid {xid.code}, {FATAL_XIDS[xid.code]}, {ago}"
            yield Violation(PATH, message, OTHER_DEVICE)


def _bus(place: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers: the log says 0000:3b:00 and the driver 00000000:3B:00.0."""
    return tuple(int(part, 16) for part in place.partition(".")[0].split(":"))


@rule("GPU008", "throttled-gpu", severity=Severity.WARN, level=Level.GPU, needs=("gpu_load",))
def throttled_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU whose hardware slows it down under load.

    ## What it does
    Multiplies matrices on every GPU at once for a few seconds and reads the driver's reasons for lower clocks
    meanwhile. Warns for those of the hardware: heat and the power brake. The software's cap of power is
    how a GPU at its limit works, and is none of them.

    ## Why is this bad?
    The slowest GPU sets the pace of all. A fan or a power supply that fails costs half of a cluster's speed
    and leaves no error.

    ## Example
    ```text
    GPU 5: hw_thermal_slowdown under load
    ```

    ## Use instead
    ```text
    a GPU that is cooled; nvidia-smi -q -d PERFORMANCE shows the reasons as they change
    ```
    """
    for gpu in used(facts.gpu_load, run):
        seen = [reason for reason in gpu.throttle_reasons if reason in HARDWARE_SLOWDOWNS]
        if seen:
            yield Violation(PATH, f"GPU {gpu.index}: {', '.join(seen)} under load", OTHER_DEVICE)
