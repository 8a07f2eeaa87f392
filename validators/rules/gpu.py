"""GPU rules: presence, model, size, health and availability of the devices that the profile requires."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from neobert.errors import ProjectError
from neobert.plan import Plan, find_card
from neobert.plurals import counted
from profiles.registry import Requirements, ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule
from validators.thresholds import MEMORY_SHARE

if TYPE_CHECKING:
    from validators.facts_gpu import GpuFacts, GpuHealthFacts, GpuProcessFacts

Device = TypeVar("Device")

NOMINAL_MEMORY_SHARE = 0.95
IDLE_MEMORY_SHARE = 0.02
PATH = "distributed.nproc_per_node"
STOP_OTHERS = "stop the other process, or choose another GPU with CUDA_VISIBLE_DEVICES"
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


@rule("GPU001", "other-gpus-than-required", severity=Severity.FAIL, level=Level.GPU, needs=("gpus",))
def other_gpus_than_required(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Fewer, different or smaller GPUs than the profile requires.

    ## What it does
    Compares the number of visible GPUs with the processes per node and the number in the profile, and the
    model, memory (95 % of the nominal size, because the driver reserves a part) and compute capability of
    each. Fails for a GPU in MIG mode: no process can use all of it.

    ## Why is this bad?
    Batch, memory, step time and duration were planned for the profile's hardware. On other hardware the plan
    does not apply.

    ## Example
    ```text
    profile: a100-prod on an A100 with 40 GiB
    ```

    ## Use instead
    ```text
    use an A100 with 80 GiB, or a profile for the smaller one
    ```
    """
    gpus = facts.gpus or ()
    requires = run.profile.requires if run.profile else None
    needed = run.config.distributed.nproc_per_node
    if requires is not None:
        needed = max(needed, math.ceil(requires.num_gpus / run.config.distributed.nnodes))
    if len(gpus) < needed:
        hint = "check CUDA_VISIBLE_DEVICES, or lower distributed.nproc_per_node"
        yield Violation(PATH, f"{counted(len(gpus), 'GPU')} visible ({needed} needed)", hint)
    if requires is not None:
        for gpu in gpus[:needed]:
            for fault in mismatches(gpu, requires):
                yield Violation(PATH, fault, f"set profile to one for {gpu.name}")


def mismatches(gpu: GpuFacts, requires: Requirements) -> Iterator[str]:
    """Yield a message for each requirement that this GPU does not meet."""
    label = f"GPU {gpu.index} ({gpu.name})"
    if gpu.is_mig_enabled:
        yield f"{label} is in MIG mode, but the plan needs the whole GPU"
    if requires.gpu is not None and not _is_model(gpu.name, requires.gpu):
        yield f"{label} is not the required {requires.gpu}"
    if requires.gpu_memory_gib is not None:
        least = NOMINAL_MEMORY_SHARE * requires.gpu_memory_gib * 1024
        if gpu.memory_total_mib < least:
            yield f"{label} has {gpu.memory_total_mib:,} MiB ({requires.gpu_memory_gib:g} GiB required)"
    needed = requires.min_compute_capability
    if needed is not None and gpu.compute_capability < needed:
        have = ".".join(map(str, gpu.compute_capability))
        yield f"{label} has compute capability {have} ({'.'.join(map(str, needed))} required)"


def _is_model(name: str, model: str) -> bool:
    """Return whether a GPU is of a model: both are the same in the table of GPUs, or its name contains it."""
    try:
        return find_card(name) == find_card(model)
    except ProjectError:
        return model.lower() in name.lower()


@rule("GPU002", "occupied-gpu", severity=Severity.FAIL, level=Level.GPU, needs=("gpus",))
def occupied_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU whose memory is used by another process.

    ## What it does
    Fails if another process computes on a GPU, if more than 2 % of its memory is used before the run
    starts (an idle driver uses less), or if the free memory does not hold the predicted step plus a margin of
    a tenth. Processes of other containers may be invisible; their memory is not.

    ## Why is this bad?
    Two jobs on one GPU halve each other's speed, and the first long batch of either kills the other.

    ## Example
    ```text
    GPU 0: 21,504 of 81,920 MiB are used by a forgotten notebook
    ```

    ## Use instead
    ```text
    find the process with nvidia-smi and stop it, or choose another GPU with CUDA_VISIBLE_DEVICES
    ```
    """
    for gpu in (facts.gpus or ())[: run.config.distributed.nproc_per_node]:
        label = f"GPU {gpu.index} ({gpu.name})"
        free = gpu.memory_total_mib - gpu.memory_used_mib
        if _is_memory_in_use(gpu):
            message = f"{label}: {gpu.memory_used_mib:,} of {gpu.memory_total_mib:,} MiB are already in use"
            yield Violation(PATH, message, STOP_OTHERS)
        elif gpu.processes:
            others = ", ".join(_format_process(process) for process in gpu.processes)
            yield Violation(PATH, f"{label} is in use by {others}", STOP_OTHERS)
        elif plan.memory_mib.value > MEMORY_SHARE * free:
            needed = f"the step needs {plan.memory_mib.value:,.0f} MiB"
            message = f"{label}: {needed}, more than {MEMORY_SHARE:.0%} of the {free:,} MiB that are free"
            hint = "lower trainer.per_device_train_batch_size, or use a larger GPU"
            yield Violation(PATH, message, hint)


@rule(
    "GPU009",
    "unused-gpus",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("gpus",),
    production_only=True,
)
def unused_gpus(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """GPUs that are visible and free, but not used by the run.

    ## What it does
    Warns if more GPUs are visible than the run has processes per node, and the others are free: no
    process computes on them, and at most 2 % of their memory is used. Under a scheduler the visible GPUs are
    those allocated to the job.

    ## Why is this bad?
    A node is paid for by the hour, not by the GPU: one process on a node with eight GPUs costs eight times as
    much as needed, and the run's own metrics do not show it.

    ## Example
    ```yaml
    distributed:
      nproc_per_node: 1   # on a node with 8 GPUs
    ```

    ## Use instead
    ```text
    distributed.nproc_per_node: 8, with fewer trainer.gradient_accumulation_steps; or CUDA_VISIBLE_DEVICES=0
    ```
    """
    processes = run.config.distributed.nproc_per_node
    visible = facts.gpus or ()
    unused = [gpu for gpu in visible[processes:] if not (gpu.processes or _is_memory_in_use(gpu))]
    if unused:
        indices = ", ".join(str(gpu.index) for gpu in unused)
        message = f"{len(unused)} of {len(visible)} visible GPUs would be idle: {indices}"
        used = ",".join(str(gpu.index) for gpu in visible if gpu not in unused)
        hint = f"raise {PATH}, or set CUDA_VISIBLE_DEVICES={used} to leave the others to other jobs"
        yield Violation(PATH, message, hint)


def _is_memory_in_use(gpu: GpuFacts) -> bool:
    return gpu.memory_used_mib > IDLE_MEMORY_SHARE * gpu.memory_total_mib


def _format_process(process: GpuProcessFacts) -> str:
    return f"process {process.pid}{f' ({process.name})' if process.name else ''}"


def used_devices(devices: tuple[Device, ...] | None, run: ResolvedRun) -> tuple[Device, ...]:
    """Return the devices that the run uses on a node, which are the first ones, one per process."""
    return (devices or ())[: run.config.distributed.nproc_per_node]


@rule("GPU003", "failing-memory", severity=Severity.FAIL, level=Level.GPU, needs=("gpu_health",))
def _failing_memory(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    for gpu in used_devices(facts.gpu_health, run):
        label = f"GPU {gpu.index}"
        for fault in _memory_faults(gpu):
            yield Violation(PATH, f"{label}: {fault}", OTHER_DEVICE)
        if gpu.retired_pages and not gpu.is_retirement_pending:
            message = f"{label}: {counted(gpu.retired_pages, 'memory page')} retired"
            yield Violation(PATH, message, "replace the GPU if the number rises", Severity.WARN)
        if _reports_nothing(gpu):
            message = f"{label}: the driver reports no memory error counters for this model"
            yield Violation(PATH, message, "use a GPU with ECC memory for long runs", Severity.WARN)


def _memory_faults(gpu: GpuHealthFacts) -> Iterator[str]:
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
def _recent_device_error(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    log = require_group(facts.gpu_log)
    devices = {_parse_pci_address(gpu.pci_bus_id) for gpu in facts.gpus or () if gpu.pci_bus_id}
    for xid in log.xids:
        is_ours = not devices or _parse_pci_address(xid.pci_bus_id) in devices
        if xid.code in FATAL_XIDS and xid.age_s <= RECENT_S and is_ours:
            ago = f"{xid.age_s / 3600:.1f} hours ago"
            message = f"GPU at {xid.pci_bus_id}: Xid {xid.code}, {FATAL_XIDS[xid.code]}, {ago}"
            yield Violation(PATH, message, OTHER_DEVICE)


def _parse_pci_address(address: str) -> tuple[int, ...]:
    """Parse the domain, bus and device of a PCI address, as 0000:3b:00 (kernel log) or 00000000:3B:00.0."""
    return tuple(int(part, 16) for part in address.partition(".")[0].split(":"))


@rule(
    "GPU008",
    "throttled-gpu",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("gpu_load",),
    production_only=True,
)
def _throttled_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    for gpu in used_devices(facts.gpu_load, run):
        throttled = [reason for reason in gpu.throttle_reasons if reason in HARDWARE_SLOWDOWNS]
        if throttled:
            yield Violation(PATH, f"GPU {gpu.index}: {', '.join(throttled)} under load", OTHER_DEVICE)
