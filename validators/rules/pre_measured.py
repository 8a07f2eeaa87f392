"""PRE, the part that a rehearsal measures: the precision that the run really computes in."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

LEAST_SHARE = 0.95
"""Of the products' arithmetic: a reduction or a clip may compute in more."""
COMPUTE = {"bf16": "bfloat16", "fp32": "float32", "no": "float32"}
MASTER = "float32"
PATH = "trainer.mixed_precision"


@rule("PRE003", "other-precision-than-declared", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def other_precision_than_declared(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that computes in another precision than its config declares.

    ## What it does
    Looks in the rehearsal at the inputs of every matrix product that torch runs, forward and backward, and
    asks that 95 % of the arithmetic is in the declared precision. The parameters have to be fp32, whatever
    the products are in: they are the master copy that the optimizer updates.

    ## Why is this bad?
    A config that says bf16 and a trainer that computes in fp32 is three to sixteen times as slow, and
    nothing in its log says why. Parameters in bf16 lose updates that are smaller than their last bit.

    ## Example
    ```text
    mixed_precision: bf16, and no autocast around the model's forward
    ```

    ## Use instead
    ```text
    the objective as the trainer's world prepares it
    ```
    """
    found = measured(rehearsal_of(facts).precision, facts, "the precision")
    declared = COMPUTE[run.config.trainer.mixed_precision]
    total = sum(found.product_flops.values())
    if not total:
        raise CannotTellError("no matrix product was seen")
    share = sum(flops for name, flops in found.product_flops.items() if name == declared) / total
    if share < LEAST_SHARE:
        shares = (f"{name} {flops / total:.0%}" for name, flops in sorted(found.product_flops.items()))
        yield Violation(
            PATH,
            f"{declared} is declared, and matrix products compute in: {', '.join(shares)}",
            "look for the place that leaves autocast, or declare the precision that is meant",
        )
    others = {name: count for name, count in found.parameters.items() if name != MASTER}
    if others:
        said = ", ".join(f"{count:,} in {name}" for name, count in sorted(others.items()))
        yield Violation(PATH, f"parameters are not all {MASTER}: {said}", "keep the master weights in fp32")
