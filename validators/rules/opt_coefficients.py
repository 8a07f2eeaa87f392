"""OPT, coefficients beside which a gradient counts for nothing: Adam's epsilon and weight decay."""

from __future__ import annotations

from math import log, sqrt

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig, TrainerConfig
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

LEAST_SHARE, HOPELESS_SHARE = 0.5, 0.1
"""Of the learning rate, by which Adam's mean step may be."""
USUAL_NORM = 1.0
"""Of the global gradient, in training that goes well; a clip above it is seldom due and bounds nothing."""
USUAL_EPSILON = OptimizerConfig().eps
MOST_ERASED, RUINOUS = 0.005, 0.05
"""Of a matrix, by one step of decay at the peak. In equilibrium a step then turns it by the root of
twice that: by a tenth of its length, and by a third."""


@rule("OPT005", "drowned-gradient", severity=Severity.FAIL, level=Level.STATIC)
def drowned_gradient(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Coefficients beside which the gradient counts for nothing.

    ## What it does
    A gradient of norm c over N weights has a root mean square of c / sqrt(N) at most, where c is
    `trainer.gradient_clipping`, and 1 where that is null or larger. Beside an `optimizer.eps` of the same
    size AdamW's mean step is half of the learning rate: warns below that, and fails below a tenth. Derives
    how much of a matrix weight decay erases in a step at the peak rate: warns above 0.5 %, fails above 5 %.

    ## Why is this bad?
    AdamW with a large epsilon is gradient descent at a rate that nobody chose; a tiny clip does the same.
    Decay that erases what a hundred steps have learned leaves weights of noise, and a rehearsal, which is
    over by then, does not show it.

    ## Example
    ```yaml
    optimizer:
      eps: 1e-3
      weight_decay: 100
    ```

    ## Use instead
    ```yaml
    optimizer:
      eps: 1e-8
      weight_decay: 0.1
    ```
    """
    optimizer = run.config.optimizer
    if "eps" in OPTIMIZERS[optimizer.name].keys:
        yield from _of_epsilon(optimizer, run.config.trainer, plan.num_parameters.value)
    yield from _of_decay(optimizer)


def _of_epsilon(optimizer: OptimizerConfig, trainer: TrainerConfig, num_parameters: int) -> Violations:
    norm = min(USUAL_NORM, trainer.gradient_clipping or USUAL_NORM)
    gradient = norm / sqrt(num_parameters)
    share = gradient / (gradient + optimizer.eps)
    if share >= LEAST_SHARE:
        return
    is_clipped = norm / USUAL_NORM < USUAL_EPSILON / optimizer.eps
    yield Violation(
        "trainer.gradient_clipping" if is_clipped else "optimizer.eps",
        f"a gradient of norm {norm:g} is {gradient:.2g} a weight, and eps is {optimizer.eps:g}: "
        f"AdamW's mean step is {share:.2%} of the learning rate",
        "trainer.gradient_clipping 1.0 and optimizer.eps 1e-8 are usual",
        None if share < HOPELESS_SHARE else Severity.WARN,
    )


def _of_decay(optimizer: OptimizerConfig) -> Violations:
    kind = OPTIMIZERS[optimizer.name]
    if kind.decay == "l2":  # the penalty passes through the moments: no share of a weight is erased
        return
    rate = optimizer.muon_lr or optimizer.lr if kind.matrices_by_muon else optimizer.lr
    erased = rate * optimizer.weight_decay
    if erased <= MOST_ERASED:
        return
    half = f"half of what a step learned is gone {log(2) / erased:,.0f} steps later"
    yield Violation(
        "optimizer.weight_decay",
        f"at the peak rate of {rate:g} each step erases {erased:.2%} of every matrix"
        + (f": {half}" if erased < 1 else ""),
        f"0.01 to 0.1 are usual; {MOST_ERASED / rate:.2g} at most at this rate",
        None if erased > RUINOUS else Severity.WARN,
    )
