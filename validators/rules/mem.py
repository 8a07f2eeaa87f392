"""MEM: predicted memory compared with the device."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.families.table import requested_kernels, with_kernels
from neobert.kernel_table import OWN_KERNELS
from neobert.plan import Plan, build_plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.mod import recomputation_hint
from validators.thresholds import MEMORY_SHARE

PATH = "trainer.per_device_train_batch_size"
RECOMPUTATION = "trainer.gradient_checkpointing"


def _device_is_unknown(run: ResolvedRun, plan: Plan) -> str:
    return "the memory of the device is unknown" if plan.device_memory_mib.value is None else ""


@rule(
    "MEM001",
    "memory-beyond-device",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_device_is_unknown,
)
def memory_beyond_device(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A step that needs more than 90 % of the device memory.

    ## What it does
    Adds up weights, gradients, moments, activations of a full microbatch, logits and the runtime, or
    takes the peak measured in a rehearsal, and compares the sum with 90 % of the device memory that the
    profile requires. Before its first step, a rehearsal runs the worst-case batch (no padding, the longest
    documents and the most targets) and the worst-case evaluation batch: if the device runs out of memory
    there, the check fails.

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
    if facts.rehearsal is not None and facts.rehearsal.out_of_memory:
        message = f"the device is out of memory: {facts.rehearsal.out_of_memory}"
        yield Violation(PATH, message, _memory_hint(run, plan))
        return
    device, needed = plan.device_memory_mib.value, plan.memory_mib
    if device is not None and needed.value > MEMORY_SHARE * device:
        parts = (
            f"state {plan.weights_mib.value + plan.gradients_mib.value + plan.optimizer_mib.value:,.0f}, "
            f"activations {plan.activations_mib.value:,.0f}, logits {plan.logits_mib.value:,.0f}"
        )
        yield Violation(
            PATH,
            f"the step needs {needed.value:,.0f} of {device:,.0f} MiB ({parts} MiB; {needed.reason})",
            _memory_hint(run, plan),
        )


def _memory_hint(run: ResolvedRun, plan: Plan) -> str:
    """Name only the changes that are predicted to fit."""
    trainer, (blocks, _) = run.config.trainer, requested_kernels(run.config)
    smallest = replace(run.config, trainer=replace(trainer, per_device_train_batch_size=1))
    recomputed = replace(run.config, trainer=replace(trainer, gradient_checkpointing=True))
    if blocks in OWN_KERNELS:
        recomputed = with_kernels(recomputed, "torch")
    changes = []
    if trainer.per_device_train_batch_size > 1 and _fits(smallest, plan):
        changes.append(f"lower {PATH} and raise trainer.gradient_accumulation_steps")
    if not trainer.gradient_checkpointing and _fits(recomputed, plan):
        changes.append(recomputation_hint(run.config))
    return ", or ".join(changes) or "lower dataset.max_seq_length, or use a smaller model"


def _fits(config: RunConfig, plan: Plan) -> bool:
    device = plan.device_memory_mib.value
    return device is None or build_plan(config, plan.assumptions).memory_mib.value <= MEMORY_SHARE * device


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
            f"set {RECOMPUTATION} to false if `neobert-launch plan` shows that it fits, else to true",
        )
