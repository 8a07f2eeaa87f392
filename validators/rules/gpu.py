"""GPU rules: presence, model, size and availability of the devices that the profile requires."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.errors import ProjectError
from neobert.plan import Plan, find_card
from neobert.plurals import counted
from profiles.registry import Requirements, ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import MEMORY_SHARE

if TYPE_CHECKING:
    from validators.facts_gpu import GpuFacts, GpuProcessFacts

NOMINAL_MEMORY_SHARE = 0.95
IDLE_MEMORY_SHARE = 0.02
PATH = "distributed.nproc_per_node"
STOP_OTHERS = "stop the other process, or choose another GPU with CUDA_VISIBLE_DEVICES"


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
    """Return whether a GPU name is of a model, by the table of GPUs, or by name if it is not in the table."""
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
        if _is_filled(gpu):
            message = f"{label}: {gpu.memory_used_mib:,} of {gpu.memory_total_mib:,} MiB are already in use"
            yield Violation(PATH, message, STOP_OTHERS)
        elif gpu.processes:
            others = ", ".join(_process(process) for process in gpu.processes)
            yield Violation(PATH, f"{label} is in use by {others}", STOP_OTHERS)
        elif plan.memory_mib.value > MEMORY_SHARE * free:
            message = f"{label}: {free:,} MiB are free, but the step needs {plan.memory_mib.value:,.0f} MiB"
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
    unused = [gpu for gpu in visible[processes:] if not (gpu.processes or _is_filled(gpu))]
    if unused:
        indices = ", ".join(str(gpu.index) for gpu in unused)
        message = f"{len(unused)} of {len(visible)} visible GPUs would be idle: {indices}"
        used = ",".join(str(gpu.index) for gpu in visible if gpu not in unused)
        hint = f"raise {PATH}, or set CUDA_VISIBLE_DEVICES={used} to leave the others to other jobs"
        yield Violation(PATH, message, hint)


def _is_filled(gpu: GpuFacts) -> bool:
    return gpu.memory_used_mib > IDLE_MEMORY_SHARE * gpu.memory_total_mib


def _process(process: GpuProcessFacts) -> str:
    return f"process {process.pid}{f' ({process.name})' if process.name else ''}"
