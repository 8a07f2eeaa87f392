"""Precision rules: declared precision of the run, and the precision that the rehearsal measured."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.precision.table import run_recipe
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, rule
from validators.thresholds import LONG_GPU_STEPS, is_long_on_gpu

MIN_SHARE = 0.95
"""Minimum share of the FLOPs; a reduction or clipping may use a higher precision."""
MASTER = "float32"
PATH = "trainer.mixed_precision"


def _why_bf16_is_optional(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.is_production or run.device == "cuda" else "the run uses no GPU"


@rule("PRE001", "fp32-on-gpu", severity=Severity.FAIL, level=Level.STATIC, inapplicable=_why_bf16_is_optional)
def fp32_on_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run, or another run on a GPU, in fp32.

    ## What it does
    Fails if `trainer.mixed_precision` is `fp32` or `no` in a production run, and in a smoke or development
    run on a GPU from 5,000 steps: such a run needs bf16, or a waiver. Warns about shorter ones. Runs on a CPU
    and numerical references use fp32 for good reason.

    ## Why is this bad?
    In fp32, tensor cores are 3 to 16 times slower than in bf16, activations take twice the memory, and flash
    attention is not available. A smoke run in fp32 uses other kernels than the production run that it
    represents, so it shows little about it.

    ## Example
    ```yaml
    profile: a100-prod
    trainer:
      mixed_precision: fp32
    ```

    ## Use instead
    ```yaml
    profile: a100-prod
    trainer:
      mixed_precision: bf16
    ```
    """
    precision, hint = run.config.trainer.mixed_precision, f"set {PATH} to bf16"
    if not run_recipe(run.config).is_fp32:
        return
    if run.is_production:
        yield Violation(PATH, f"{PATH} is {precision} in a production run", hint)
    elif is_long_on_gpu(run, plan):
        steps = f"{plan.max_steps.value:,} steps (limit {LONG_GPU_STEPS:,})"
        message = f"{PATH} is {precision} on a GPU for {steps}"
        yield Violation(PATH, message, f"{hint}, or waive PRE001 with a reason")
    else:
        yield Violation(PATH, f"{PATH} is {precision} on a GPU", hint, Severity.WARN)


def _computes_in_bf16(run: ResolvedRun, plan: Plan) -> str:
    return "the run does not compute in bf16" if run_recipe(run.config).is_fp32 else ""


@rule(
    "PRE002",
    "precision-beyond-gpu",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("gpus",),
    inapplicable=_computes_in_bf16,
)
def precision_beyond_gpu(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A GPU without bf16 tensor cores.

    ## What it does
    Requires compute capability 8.0 on every visible GPU if the run computes in bf16.

    ## Why is this bad?
    Older GPUs emulate bf16 in fp32: the run works correctly, but takes many times as long.

    ## Example
    ```text
    trainer.mixed_precision: bf16 on a V100 (compute capability 7.0)
    ```

    ## Use instead
    ```text
    an A100, H100, H200, L40S or RTX 4090 (8.0 or later)
    ```
    """
    precision, least = run.config.trainer.mixed_precision, run_recipe(run.config).min_capability
    needed = ".".join(map(str, least))
    for gpu in facts.gpus or ():
        if gpu.compute_capability < least:
            own = ".".join(map(str, gpu.compute_capability))
            message = f"GPU {gpu.index} ({gpu.name}) has compute capability {own}; {precision} needs {needed}"
            yield Violation(PATH, message, f"use a GPU with compute capability {needed} or later")


@rehearsal_rule("PRE003", "other-precision-than-declared", severity=Severity.FAIL)
def other_precision_than_declared(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that computes in a different precision from the one in its config.

    ## What it does
    Inspects the inputs of every matrix product that torch runs in the rehearsal, forward and backward, and
    requires that 95 % of the FLOPs use the declared precision. Parameters must be fp32 for any declared
    precision: they are the master copy that the optimizer updates.

    ## Why is this bad?
    A config with bf16 and a trainer that computes in fp32 is 3 to 16 times slower, and
    nothing in the log explains it. Parameters in bf16 lose updates smaller than their last bit.

    ## Example
    ```text
    mixed_precision: bf16, but no autocast around the model's forward pass
    ```

    ## Use instead
    ```text
    the objective as prepared by the trainer
    ```
    """
    precision = require_measured(require_rehearsal(facts).precision, facts, "the precision")
    recipe = run_recipe(run.config)
    declared, conversion = recipe.dtype, recipe.conversion
    low = conversion.recipe.products if conversion else frozenset()
    total = sum(precision.product_flops.values())
    if not total:
        raise CannotTellError("no matrix products were recorded")
    used = precision.product_flops
    shares = ", ".join(f"{name} {flops / total:.0%}" for name, flops in sorted(used.items()))
    if sum(flops for name, flops in used.items() if name in (declared, *low)) / total < MIN_SHARE:
        yield Violation(
            PATH,
            f"{declared} is declared, but matrix products use {shares} (at least {MIN_SHARE:.0%})",
            f"find the code that runs outside autocast, or set {PATH} to the intended precision",
        )
    elif conversion and low and low.isdisjoint(used):
        yield Violation(
            conversion.key("recipe"),
            f"{conversion.name} is declared, but matrix products use {shares}",
            "find the code that replaces or bypasses the converted layers",
        )
    others = {name: count for name, count in precision.parameters.items() if name != MASTER}
    if others:
        counts = ", ".join(f"{count:,} in {name}" for name, count in sorted(others.items()))
        yield Violation(PATH, f"not all parameters are {MASTER}: {counts}", "keep the master weights in fp32")
