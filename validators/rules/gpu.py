"""GPU: the devices that the profile requires, and whether they are free."""

from __future__ import annotations

import math
from collections.abc import Iterator

from neobert.errors import ProjectError
from neobert.plan import Plan, find_card
from neobert.plurals import counted
from profiles.registry import Requirements, ResolvedRun
from validators.facts import Facts
from validators.facts_gpu import GpuFacts, GpuProcessFacts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import MEMORY_SHARE

NOMINAL_MEMORY_SHARE = 0.95
IDLE_MEMORY_SHARE = 0.02
PATH = "distributed.nproc_per_node"


@rule("GPU001", "other-gpus-than-required", severity=Severity.FAIL, level=Level.GPU, needs=("gpus",))
def other_gpus_than_required(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Fewer, other or smaller GPUs than the profile requires.

    ## What it does
    Counts the visible GPUs against the processes of a node and the profile's number, and compares model,
    memory (95 % of the nominal size: the driver keeps a part) and compute capability of each. A GPU that is
    split by MIG fails: no process gets the whole of it.

    ## Why is this bad?
    Batch, memory, step time and ETA were planned for the profile's hardware. On other hardware the plan
    is fiction.

    ## Example
    ```text
    profile: a100-prod on an A100 with 40 GiB
    ```

    ## Use instead
    ```text
    an A100 with 80 GiB, or a profile for the smaller one
    ```
    """
    gpus = facts.gpus or ()
    requires = run.profile.requires if run.profile else None
    needed = run.config.distributed.nproc_per_node
    if requires is not None:
        needed = max(needed, math.ceil(requires.num_gpus / run.config.distributed.nnodes))
    if len(gpus) < needed:
        hint = "check CUDA_VISIBLE_DEVICES, or lower distributed.nproc_per_node"
        yield Violation(PATH, f"{counted(len(gpus), 'GPU')} visible, {needed} needed", hint)
    if requires is not None:
        for gpu in gpus[:needed]:
            yield from (
                Violation(PATH, fault, "use the profile of this GPU") for fault in mismatches(gpu, requires)
            )


def mismatches(gpu: GpuFacts, requires: Requirements) -> Iterator[str]:
    """Yield one sentence for each requirement that this GPU does not meet."""
    label = f"GPU {gpu.index} ({gpu.name})"
    if gpu.is_mig_enabled:
        yield f"{label} is split by MIG, and the plan is for a whole one"
    if requires.gpu is not None and not _is_model(gpu.name, requires.gpu):
        yield f"{label} is no {requires.gpu}"
    if requires.gpu_memory_gib is not None:
        least = NOMINAL_MEMORY_SHARE * requires.gpu_memory_gib * 1024
        if gpu.memory_total_mib < least:
            yield f"{label} has {gpu.memory_total_mib:,} MiB and {requires.gpu_memory_gib:g} GiB are required"
    needed = requires.min_compute_capability
    if needed is not None and gpu.compute_capability < needed:
        have = ".".join(map(str, gpu.compute_capability))
        yield f"{label} has compute capability {have} and {'.'.join(map(str, needed))} is required"


def _is_model(name: str, model: str) -> bool:
    """A card that the table lacks is compared by its name alone."""
    try:
        return find_card(name) == find_card(model)
    except ProjectError:
        return model.lower() in name.lower()


@rule("GPU002", "occupied-gpu", severity=Severity.FAIL, level=Level.GPU, needs=("gpus",))
def occupied_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU whose memory somebody else uses.

    ## What it does
    Fails where another process computes on a GPU, where more than 2 % of its memory is taken before the run
    starts (an idle driver keeps less), or where what is free does not hold the predicted step with a tenth
    to spare. Processes of other containers may not be told; their memory is.

    ## Why is this bad?
    Two jobs on one GPU halve each other's speed, and the first long batch of either kills the other.

    ## Example
    ```text
    GPU 0: 21,504 of 81,920 MiB are in use by a forgotten notebook
    ```

    ## Use instead
    ```text
    nvidia-smi, and end what is yours; or choose another device with CUDA_VISIBLE_DEVICES
    ```
    """
    for gpu in (facts.gpus or ())[: run.config.distributed.nproc_per_node]:
        label = f"GPU {gpu.index} ({gpu.name})"
        free = gpu.memory_total_mib - gpu.memory_used_mib
        if _is_filled(gpu):
            message = f"{label}: {gpu.memory_used_mib:,} of {gpu.memory_total_mib:,} MiB are in use already"
            yield Violation(PATH, message, "end the other process, or choose another device")
        elif gpu.processes:
            who = ", ".join(_process(process) for process in gpu.processes)
            yield Violation(PATH, f"{label}: {who} computes on it", "end it, or choose another device")
        elif plan.memory_mib.value > MEMORY_SHARE * free:
            message = f"{label}: {free:,} MiB are free and the step needs {plan.memory_mib.value:,.0f} MiB"
            yield Violation(PATH, message, "lower the batch per device, or use a larger GPU")


@rule(
    "GPU009",
    "unused-gpus",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("gpus",),
    production_only=True,
)
def unused_gpus(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """GPUs that the run could see, that nobody uses, and that it leaves idle.

    ## What it does
    Warns where more GPUs are visible than the run has processes on a node, and those beyond are free: no
    process computes on them, and no more than 2 % of their memory is taken. Under a scheduler what is visible
    is what the job has been given.

    ## Why is this bad?
    A node is paid for by the hour and not by the GPU: one process on a node of eight costs eight times what
    it could, and every number that a run tells of itself is as good as ever.

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
        which = ", ".join(str(gpu.index) for gpu in unused)
        message = f"{len(unused)} of {len(visible)} visible GPUs would stay idle: {which}"
        used = ",".join(str(gpu.index) for gpu in visible if gpu not in unused)
        hint = f"raise {PATH}, or set CUDA_VISIBLE_DEVICES={used} where the others are not for this run"
        yield Violation(PATH, message, hint)


def _is_filled(gpu: GpuFacts) -> bool:
    return gpu.memory_used_mib > IDLE_MEMORY_SHARE * gpu.memory_total_mib


def _process(process: GpuProcessFacts) -> str:
    return f"process {process.pid}{f' ({process.name})' if process.name else ''}"
