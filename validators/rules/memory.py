"""Memory rules: predicted and measured memory, compared with the device and over time, and its sharding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neobert.config.schema import RunConfig
from neobert.families.table import requested_kernels, with_kernels
from neobert.kernel_table import OWN_KERNELS
from neobert.plan import Plan, build_plan
from neobert.plan.size import num_processes
from neobert.plurals import counted
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import reason_without_gpu, require_measured, require_rehearsal
from validators.rule import Violations, rehearsal_rule, rule
from validators.rules.model import recomputation_hint
from validators.thresholds import MEMORY_SHARE

if TYPE_CHECKING:
    from validators.facts_rehearsal import MemoryFacts

RECOMPUTATION = "trainer.gradient_checkpointing"
MIN_RATIO, MAX_RATIO = 0.5, 1.5
MAX_RESERVED = 1.5
GROWTH_STEPS = 50
GROWTH_SHARE = 0.01
PATH = "trainer.per_device_train_batch_size"

OF_ONE_NODE = (2, 4, 8)
"""Numbers of processes per node that hints may suggest."""


def _why_memory_is_unknown(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about the memory of a device do not apply; empty if they apply."""
    return "the memory of the device is unknown" if plan.device_memory_mib.value is None else ""


def fits_device(config: RunConfig, plan: Plan) -> bool:
    """Return whether a config is predicted to fit on the plan's device."""
    device = plan.device_memory_mib.value
    return device is None or build_plan(config, plan.assumptions).memory_mib.value <= MEMORY_SHARE * device


def _state_mib(plan: Plan) -> float:
    """Return the predicted memory of weights, gradients and moments on one device."""
    return plan.weights_mib.value + plan.gradients_mib.value + plan.optimizer_mib.value


def is_too_large(plan: Plan) -> bool:
    """Return whether weights, gradients and moments alone exceed the memory of the device."""
    device = plan.device_memory_mib.value
    return device is not None and _state_mib(plan) > MEMORY_SHARE * device


def _shard_over_ranks(config: RunConfig, ranks: int) -> RunConfig:
    sharing = replace(config.distributed, mode="fsdp2", replicas=1, reshard_after_forward=None)
    if ranks != num_processes(config):
        sharing = replace(sharing, nproc_per_node=ranks, nnodes=1)
    return replace(config, distributed=sharing)


def _sharding_hint(config: RunConfig, sharded: RunConfig) -> str:
    before, after = config.distributed, sharded.distributed
    edits = []
    if before.mode != after.mode:
        edits.append(f"distributed.mode to {after.mode}")
    if before.replicas != after.replicas:
        edits.append("distributed.replicas to 1")
    if before.reshard_after_forward is False:
        edits.append("distributed.reshard_after_forward to null")
    if before.nproc_per_node != after.nproc_per_node:
        edits.append(f"distributed.nproc_per_node to {after.nproc_per_node}")
    return f"set {' and '.join(edits)}"


@rule(
    "MEM001",
    "memory-beyond-device",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_why_memory_is_unknown,
)
def memory_beyond_device(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A step that needs more than 90 % of the device memory.

    ## What it does
    Adds up weights, gradients, moments, activations of a full microbatch, logits and the runtime, or
    takes the peak measured in a rehearsal, and compares the sum with 90 % of the device memory that the
    profile requires. Before its first step, a rehearsal runs the worst-case batch (no padding, the longest
    documents and the most targets) and the worst-case evaluation batch: if the device runs out of memory
    there, the check fails. If weights, gradients and moments alone exceed it, names the mode and the number
    of processes with which the model fits: with `distributed.mode: replicated` each GPU holds 16 bytes per
    parameter with AdamW, and 2 more in bf16; with `fsdp2` its shards, and one gathered block at a time.

    ## Why is this bad?
    A run that barely fits crashes when the allocator fragments or the longest batch arrives.

    ## Example
    ```yaml
    profile: a100-prod
    trainer:
      per_device_train_batch_size: 1024
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    trainer:
      per_device_train_batch_size: 32
      gradient_accumulation_steps: 32
    ```
    """
    device, needed = plan.device_memory_mib.value, plan.memory_mib
    if device is not None and is_too_large(plan):
        yield _too_large_violation(run, plan, device)
    elif facts.rehearsal is not None and facts.rehearsal.out_of_memory:
        message = f"the device is out of memory: {facts.rehearsal.out_of_memory}"
        yield Violation(PATH, message, _memory_hint(run, plan))
    elif device is not None and needed.value > MEMORY_SHARE * device:
        parts = (
            f"state {_state_mib(plan):,.0f}, "
            f"activations {plan.activations_mib.value:,.0f}, logits {plan.logits_mib.value:,.0f}"
        )
        yield Violation(
            PATH,
            f"the step needs {needed.value:,.0f} of {device:,.0f} MiB ({parts} MiB; {needed.reason})",
            _memory_hint(run, plan),
        )


def _too_large_violation(run: ResolvedRun, plan: Plan, device_mib: float) -> Violation:
    """Return the violation for weights and moments that do not fit with any microbatch size."""
    sharing, world = run.config.distributed, plan.world_size.value
    is_sharded = world > 1 and sharing.mode == "fsdp2"
    how = f"sharded over {world} ranks" if is_sharded else "whole on each device"
    message = (
        f"weights, gradients and moments of {plan.num_parameters.value:,} parameters, {how}, "
        f"need {_state_mib(plan):,.0f} of {device_mib:,.0f} MiB"
    )
    several = [world, *(ranks for ranks in OF_ONE_NODE if ranks > world and sharing.nnodes == 1)]
    candidates = (_shard_over_ranks(run.config, ranks) for ranks in several if ranks > 1)
    fitting = (each for each in candidates if not is_too_large(build_plan(each, plan.assumptions)))
    sharded = next(fitting, None)
    hint = "use a smaller model, or more nodes" if sharded is None else _sharding_hint(run.config, sharded)
    keeps_all = is_sharded and sharing.reshard_after_forward is False
    path = "distributed.reshard_after_forward" if keeps_all else "distributed.mode"
    return Violation(path, message, hint)


def _memory_hint(run: ResolvedRun, plan: Plan) -> str:
    """Return the hint, listing only changes that are predicted to fit."""
    trainer, (blocks, _) = run.config.trainer, requested_kernels(run.config)
    smallest = replace(run.config, trainer=replace(trainer, per_device_train_batch_size=1))
    recomputed = replace(run.config, trainer=replace(trainer, gradient_checkpointing=True))
    if blocks in OWN_KERNELS:
        recomputed = with_kernels(recomputed, "torch")
    changes = []
    if trainer.per_device_train_batch_size > 1 and fits_device(smallest, plan):
        changes.append(f"lower {PATH} and raise trainer.gradient_accumulation_steps")
    if not trainer.gradient_checkpointing and fits_device(recomputed, plan):
        changes.append(recomputation_hint(run.config))
    sharded = _shard_over_ranks(run.config, plan.world_size.value)
    if plan.world_size.value > 1 and sharded != run.config and fits_device(sharded, plan):
        changes.append(_sharding_hint(run.config, sharded))
    return ", or ".join(changes) or "lower dataset.max_seq_length, or use a smaller model"


@rule("MEM004", "implicit-recomputation", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def implicit_recomputation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run that does not set gradient checkpointing explicitly.

    ## What it does
    Requires that the profile, the run file or the command line sets `trainer.gradient_checkpointing` to true
    or false. The shipped production profiles do.

    ## Why is this bad?
    The key trades about a third more compute for most of the activation memory. A run that inherits the
    default may be slower than necessary, or run out of memory if the profile was written for another device.

    ## Example
    ```yaml
    trainer:
      per_device_train_batch_size: 16
    ```

    ## Use instead
    ```yaml
    trainer:
      per_device_train_batch_size: 16
      gradient_checkpointing: false
    ```
    """
    if run.origin(RECOMPUTATION).kind == "default":
        chosen = str(run.config.trainer.gradient_checkpointing).lower()
        yield Violation(
            RECOMPUTATION,
            f"{RECOMPUTATION} is not set by profile or run file (default: {chosen})",
            f"set {RECOMPUTATION} to false if the memory is sufficient (`neobert-launch plan`), else to true",
        )


def _require_memory(facts: Facts) -> MemoryFacts:
    return require_measured(require_rehearsal(facts).memory, facts, "device memory")


@rehearsal_rule("MEM002", "memory-not-as-predicted", severity=Severity.WARN, inapplicable=reason_without_gpu)
def memory_not_as_predicted(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Measured memory that differs widely from the prediction.

    ## What it does
    Compares the peak of the rehearsal, including the device context, with the plan's sum of weights,
    gradients, moments, activations, logits and runtime. Warns below 0.5 or above 1.5 times that sum, and if
    the allocator reserved 1.5 times the allocated memory or more.

    ## Why is this bad?
    Twice the predicted memory means that something runs in another precision, or that a kernel keeps buffers
    that it should free. Half of it means that another model is trained. Much more reserved than allocated
    memory is fragmentation, which grows until the run is out of memory.

    ## Example
    ```text
    66 GiB reserved, 21 GiB allocated: 3.1 times
    ```

    ## Use instead
    ```text
    constant shapes (datacollator.pack_sequences), expandable segments in PYTORCH_ALLOC_CONF
    ```
    """
    memory, predicted = _require_memory(facts), predicted_mib(plan)
    peak = memory.peak_allocated_mib + memory.context_mib
    if not MIN_RATIO <= peak / predicted <= MAX_RATIO:
        yield Violation(
            PATH,
            f"peak memory is {peak:,} MiB, {peak / predicted:.2f} times the predicted {predicted:,.0f} MiB "
            f"({MIN_RATIO:g} to {MAX_RATIO:g} expected)",
            "compare precision, kernels and sizes with the plan: neobert-launch plan --verbose",
        )
    if memory.peak_reserved_mib >= MAX_RESERVED * memory.peak_allocated_mib:
        yield Violation(
            PATH,
            f"the allocator reserves {memory.peak_reserved_mib:,} MiB for tensors of "
            f"{memory.peak_allocated_mib:,} MiB (limit {MAX_RESERVED:g} times)",
            "use constant shapes, or set PYTORCH_ALLOC_CONF=expandable_segments:True",
        )


def predicted_mib(plan: Plan) -> float:
    """Return the predicted memory of a step in MiB, summed over the plan's estimates."""
    parts = (
        plan.weights_mib,
        plan.gradients_mib,
        plan.optimizer_mib,
        plan.activations_mib,
        plan.logits_mib,
        plan.runtime_mib,
    )
    return sum(part.value for part in parts)


@rehearsal_rule("MEM003", "memory-grows", severity=Severity.WARN, inapplicable=reason_without_gpu)
def memory_grows(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Memory that grows from step to step, or an allocator that has to retry.

    ## What it does
    Warns if memory allocated between steps would grow by more than 1 % of the peak in 50 steps, and if
    the allocator had to flush its cache and retry.

    ## Why is this bad?
    A leak of a few MiB per step is invisible in a test and ends the run within an hour. A retry stalls the
    device, and is the last stage before an out-of-memory error.

    ## Example
    ```text
    losses kept in a list, each with its graph
    ```

    ## Use instead
    ```text
    losses detached and summed on the device
    ```
    """
    memory = _require_memory(facts)
    growth = memory.growth_mib_per_step * GROWTH_STEPS
    if growth > GROWTH_SHARE * memory.peak_allocated_mib:
        message = (
            f"memory allocated between steps grows by {growth:,.0f} MiB in {GROWTH_STEPS} steps "
            f"(limit {GROWTH_SHARE:.0%} of the peak)"
        )
        yield Violation("trainer", message, "find tensors that are kept across steps")
    if memory.alloc_retries:
        message = f"the allocator flushed its cache and retried {counted(memory.alloc_retries, 'time')}"
        hint = f"lower {PATH} and raise trainer.gradient_accumulation_steps"
        yield Violation(PATH, message, hint)
