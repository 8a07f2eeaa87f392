"""PRE: precision that the rehearsal measured."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

LEAST_SHARE = 0.95
"""Share of the FLOPs of matrix products: a reduction or a clip may use a higher precision."""
COMPUTE = {"bf16": "bfloat16", "fp32": "float32", "no": "float32"}
MASTER = "float32"
PATH = "trainer.mixed_precision"


@rule("PRE003", "other-precision-than-declared", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def other_precision_than_declared(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that computes in another precision than its config declares.

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
    precision = measured(rehearsal_of(facts).precision, facts, "the precision")
    declared = COMPUTE[run.config.trainer.mixed_precision]
    total = sum(precision.product_flops.values())
    if not total:
        raise CannotTellError("no matrix products were recorded")
    share = sum(flops for name, flops in precision.product_flops.items() if name == declared) / total
    if share < LEAST_SHARE:
        shares = (f"{name} {flops / total:.0%}" for name, flops in sorted(precision.product_flops.items()))
        yield Violation(
            PATH,
            f"{declared} is declared, but matrix products use {', '.join(shares)}",
            f"find the code that leaves autocast, or set {PATH} to the intended precision",
        )
    others = {name: count for name, count in precision.parameters.items() if name != MASTER}
    if others:
        counts = ", ".join(f"{count:,} in {name}" for name, count in sorted(others.items()))
        yield Violation(PATH, f"not all parameters are {MASTER}: {counts}", "keep the master weights in fp32")
