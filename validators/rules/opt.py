"""OPT: the optimizer's coefficients."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule


@rule("OPT001", "swapped-betas", severity=Severity.WARN, level=Level.STATIC)
def swapped_betas(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A first moment that remembers longer than the second.

    ## What it does
    Warns where the first of `optimizer.betas` is above the second. Their bounds are part of the schema
    (CFG003).

    ## Why is this bad?
    Adam divides a mean gradient by the root of a mean square. Where the square forgets sooner than the
    mean, one small gradient lets the step explode; the usual cause is two numbers in the wrong order.

    ## Example
    ```yaml
    optimizer:
      betas: [0.999, 0.9]
    ```

    ## Use instead
    ```yaml
    optimizer:
      betas: [0.9, 0.999]
    ```
    """
    first, second = run.config.optimizer.betas
    if first > second:
        yield Violation(
            "optimizer.betas", f"betas [{first:g}, {second:g}] look swapped", "write the smaller one first"
        )
