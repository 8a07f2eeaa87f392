"""MEM: predicted memory against the device."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.families.table import requested_kernels, with_kernels
from neobert.plan import Plan, build_plan
from neobert.plan.kernels import OWN_KERNELS
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.mod import way_to_recompute
from validators.thresholds import MEMORY_SHARE

PATH = "trainer.per_device_train_batch_size"
RECOMPUTATION = "trainer.gradient_checkpointing"


def _device_is_unknown(run: ResolvedRun, plan: Plan) -> str:
    return "nobody said how much memory the device has" if plan.device_memory_mib.value is None else ""


@rule(
    "MEM001",
    "memory-beyond-device",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_device_is_unknown,
)
def memory_beyond_device(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A step that does not fit the device with a tenth to spare.

    ## What it does
    Adds up weights, gradients, moments, activations of a full microbatch, logits and the runtime, or
    takes what a rehearsal measured, and compares it with nine tenths of the device that the profile
    requires. A rehearsal runs the worst batch, full to the last token with the longest documents and the
    most targets, and the evaluation's, before its first step: where the device has no room for it, the
    check fails.

    ## Why is this bad?
    A run that just fits runs until the allocator fragments or the longest batch comes, and dies there.

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
        yield Violation(
            PATH, f"the device has no room: {facts.rehearsal.out_of_memory}", _ways_to_fit(run, plan)
        )
        return
    device, needed = plan.device_memory_mib.value, plan.memory_mib
    if device is not None and needed.value > MEMORY_SHARE * device:
        parts = (
            f"state {plan.weights_mib.value + plan.gradients_mib.value + plan.optimizer_mib.value:,.0f}, "
            f"activations {plan.activations_mib.value:,.0f}, logits {plan.logits_mib.value:,.0f}"
        )
        yield Violation(
            PATH,
            f"{needed.value:,.0f} MiB of {device:,.0f} MiB are needed ({parts} MiB; {needed.reason})",
            _ways_to_fit(run, plan),
        )


def _ways_to_fit(run: ResolvedRun, plan: Plan) -> str:
    """Name the changes after which the step is predicted to fit."""
    trainer, (blocks, _) = run.config.trainer, requested_kernels(run.config)
    smallest = replace(run.config, trainer=replace(trainer, per_device_train_batch_size=1))
    recomputed = replace(run.config, trainer=replace(trainer, gradient_checkpointing=True))
    if blocks in OWN_KERNELS:
        recomputed = with_kernels(recomputed, "torch")
    ways = []
    if trainer.per_device_train_batch_size > 1 and _fits(smallest, plan):
        ways.append("lower the batch per device and accumulate")
    if not trainer.gradient_checkpointing and _fits(recomputed, plan):
        ways.append(way_to_recompute(run.config))
    return ", or ".join(ways) or "shorten the rows, or take a smaller model"


def _fits(config: RunConfig, plan: Plan) -> bool:
    device = plan.device_memory_mib.value
    return device is None or build_plan(config, plan.assumptions).memory_mib.value <= MEMORY_SHARE * device


@rule("MEM004", "implicit-recomputation", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def implicit_recomputation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run in which nothing says whether activations are recomputed.

    ## What it does
    Asks that the profile, the run file or the command line sets `trainer.gradient_checkpointing`, to true or
    to false. The shipped production profiles do.

    ## Why is this bad?
    The key trades about a third more compute for most of the memory of activations. A run that inherits the
    default has made that choice without anybody looking at it: it is either slower than it could be, or runs
    out of memory where the profile was written for another device.

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
            f"no profile or run file sets {RECOMPUTATION}; the default is {chosen}",
            f"set {RECOMPUTATION}: false where the step fits into memory (`neobert-launch plan`), else true",
        )
