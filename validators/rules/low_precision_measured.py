"""Rules of low precision that a rehearsal measures: its speed and its loss, compared with bf16."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rehearsal_parts import measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rehearsal_rule
from validators.rules.low_precision import enabled_in, is_off

MAX_TIME = 0.97
"""Of a step in bf16: below it, the gain is within the noise of a measurement."""
MAX_LOSS_CHANGE = 0.01
"""Relative. Rounding to mxfp8 changed the loss of small models by 0.01 to 0.07 %."""


@rehearsal_rule("PRE011", "low-precision-slower", severity=Severity.FAIL, inapplicable=is_off)
def low_precision_slower(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe that is not faster than bf16.

    ## What it does
    Rehearses the run and the same run without the section, on the kernels that `kernel_backend: auto` then
    chooses, in turns on one device. Fails if a step takes more than 97 % of the time in bf16; in development
    and smoke runs, it warns.

    ## Why is this bad?
    Low precision costs accuracy, and only its speed pays for it. Quantizing the inputs of each product takes
    time too: at a width of 768, more than the products save. This project's kernels do not run with a recipe.

    ## Example
    ```text
    a step takes 131 ms with float8_rowwise (torch, torch_varlen) and 93.1 ms in bf16 (triton, triton_packed)
    ```

    ## Use instead
    ```text
    torchao.enable: false
    ```
    """
    compared = measured(rehearsal_of(facts).low_precision, facts, "the speed in bf16")
    conversion = enabled_in(run)
    if compared.recipe_step_s > MAX_TIME * compared.bf16_step_s:
        message = (
            f"a step takes {1000 * compared.recipe_step_s:.3g} ms with {conversion.name} "
            f"({compared.recipe_kernels}) and {1000 * compared.bf16_step_s:.3g} ms in bf16 "
            f"({compared.bf16_kernels}; limit {MAX_TIME:.0%})"
        )
        severity = None if run.is_production else Severity.WARN
        yield Violation(conversion.key("enable"), message, conversion.remove, severity)


@rehearsal_rule("PRE012", "low-precision-changes-loss", severity=Severity.FAIL, inapplicable=is_off)
def low_precision_changes_loss(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A recipe with which the run learns differently from the start.

    ## What it does
    Compares the loss of steps 9 to 16 with that of the same steps in bf16, from the same weights on the same
    text. Fails above 1 % of difference, and if a loss is not finite.

    ## Why is this bad?
    Rounding to fp8 changes a loss by less than a thousandth. More means that values overflow, or that a layer
    that needs more precision was converted.

    ## Example
    ```text
    loss 7.31 with float8_tensorwise, 7.02 in bf16
    ```

    ## Use instead
    ```yaml
    torchao:
      recipe: float8_rowwise
    ```
    """
    compared = measured(rehearsal_of(facts).low_precision, facts, "the loss in bf16")
    own, other, conversion = compared.recipe_loss, compared.bf16_loss, enabled_in(run)
    name, key, remove = conversion.name, conversion.key("enable"), conversion.remove
    if other is None:
        raise CannotTellError("the loss in bf16 is not finite")
    if own is None:
        yield Violation(key, f"the loss is not finite with {name}, and {other:.4g} in bf16", remove)
    elif abs(own / other - 1) > MAX_LOSS_CHANGE:
        message = f"the loss of steps 9 to 16 is {own:.4g} with {name} and {other:.4g} in bf16"
        yield Violation(key, f"{message} (limit {MAX_LOSS_CHANGE:.0%})", remove)
