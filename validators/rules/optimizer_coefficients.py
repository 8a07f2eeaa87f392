"""Optimizer rules: coefficients that overwhelm the gradient, and moments longer than the run."""

from __future__ import annotations

from math import log, sqrt

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig, TrainerConfig
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import is_shortened
from validators.rule import Violations, rule

MIN_SHARE, HOPELESS_SHARE = 0.5, 0.1
"""Of the learning rate: Adam's mean step."""
USUAL_NORM = 1.0
"""Norm of the global gradient in a healthy run; a clip above it is rarely active and bounds nothing."""
USUAL_EPSILON = OptimizerConfig().eps
MIN_EPSILON = 1e-20
"""The square of a gradient of 1e-21 is 0 in fp32: its update is the first moment over epsilon alone."""
MAX_ERASED, RUINOUS = 0.005, 0.05
"""Share of a matrix that decay removes in one step at the peak rate. In equilibrium a step rotates it by the
square root of twice that: by 0.1 and by 0.32 of its length."""

MAX_PULL, OVERWHELMING_PULL = 0.1, 1.0
"""Gradient of the z-loss by a logit, 2 z logsumexp softmax, over that of the cross-entropy, softmax."""


@rule("OPT005", "drowned-gradient", severity=Severity.FAIL, level=Level.STATIC)
def drowned_gradient(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An epsilon, weight decay or z-loss that overwhelms the gradient.

    ## What it does
    A gradient of norm c over N weights has an RMS of at most c / sqrt(N), where c is
    `trainer.gradient_clipping`, or 1 if that is null or larger. With an `optimizer.eps` of the same
    size, AdamW's mean step is half of the learning rate: warns below that, fails below a tenth. Fails if
    `optimizer.eps` is below 1e-20. Also computes the share of a matrix that weight decay removes per step
    at the peak rate: warns above 0.5 %, fails above 5 %. Compares the gradient of `trainer.z_loss` by a logit
    with that of the cross-entropy, 2 z ln(V) before the first step: warns above 0.1, fails above 1.

    ## Why is this bad?
    AdamW with a large epsilon is gradient descent at an unintended rate; a tiny clipping norm has the same
    effect. Without epsilon, a gradient whose square is 0 in fp32 gives an update of any size, and a gradient
    of 0 gives NaN. Decay that removes what a hundred steps have learned leaves noise, and a rehearsal is too
    short to show it.

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
    yield from _of_z_loss(run.config.trainer.z_loss, plan.vocab_size.value)


def _of_epsilon(optimizer: OptimizerConfig, trainer: TrainerConfig, num_parameters: int) -> Violations:
    if optimizer.eps < MIN_EPSILON:
        yield Violation(
            "optimizer.eps",
            f"optimizer.eps {optimizer.eps:g} is below {MIN_EPSILON:g}: squares of gradients that small "
            "are 0 in fp32, and their updates are of any size",
            f"set optimizer.eps to {USUAL_EPSILON:g}, the usual value",
        )
    norm = min(USUAL_NORM, trainer.gradient_clipping or USUAL_NORM)
    gradient = norm / sqrt(num_parameters)
    share = gradient / (gradient + optimizer.eps)
    if share >= MIN_SHARE:
        return
    is_clipped = norm / USUAL_NORM < USUAL_EPSILON / optimizer.eps
    yield Violation(
        "trainer.gradient_clipping" if is_clipped else "optimizer.eps",
        f"a gradient of norm {norm:g} is {gradient:.2g} per weight, but optimizer.eps is {optimizer.eps:g}: "
        f"AdamW's mean step is {share:.2%} of the learning rate",
        "set trainer.gradient_clipping to 1.0 and optimizer.eps to 1e-8, the usual values",
        None if share < HOPELESS_SHARE else Severity.WARN,
    )


def _of_decay(optimizer: OptimizerConfig) -> Violations:
    kind = OPTIMIZERS[optimizer.name]
    if kind.decay == "l2":  # the penalty goes through the moments and removes no fixed share of a weight
        return
    rate = optimizer.muon_lr or optimizer.lr if kind.matrices_by_muon else optimizer.lr
    erased = round(rate * optimizer.weight_decay, 12)  # the product of 0.05 and 0.1 exceeds 0.005 by 1e-18
    if erased <= MAX_ERASED:
        return
    half = f"an update decays to half in {log(2) / erased:,.0f} steps"
    yield Violation(
        "optimizer.weight_decay",
        f"at the peak rate of {rate:g} each step removes {erased:.2%} of every matrix"
        + (f": {half}" if erased < 1 else ""),
        f"set optimizer.weight_decay to {MAX_ERASED / rate:.2g} or less; 0.01 to 0.1 is usual",
        None if erased > RUINOUS else Severity.WARN,
    )


def _of_z_loss(z_loss: float, vocab_size: int) -> Violations:
    pull = 2 * z_loss * log(vocab_size)
    if pull <= MAX_PULL:
        return
    yield Violation(
        "trainer.z_loss",
        f"trainer.z_loss {z_loss:g} has {pull:.2g} times the logit gradient of the cross-entropy "
        f"(at most {MAX_PULL:g})",
        "set trainer.z_loss to 1e-4, the usual value",
        None if pull > OVERWHELMING_PULL else Severity.WARN,
    )


@rule("OPT007", "moment-longer-than-run", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def moment_longer_than_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A second moment of Adam that averages over more steps than the run has.

    ## What it does
    Adam's second moment averages squared gradients over about 1 / (1 - beta2) steps: 1,000 for a beta2 of
    0.999, 20 for 0.95. Warns if `trainer.max_steps` is lower, unless only the command line made it so.

    ## Why is this bad?
    The gradients of the first steps are by far the largest. If the run ends before the average forgets them,
    they make every later update smaller than the learning rate suggests. A warm-up of 2 / (1 - beta2) steps,
    the usual recommendation (arXiv:1910.04209), would be longer than the run.

    ## Example
    ```yaml
    optimizer:
      betas: [0.9, 0.999]
    trainer:
      max_steps: 500
    ```

    ## Use instead
    ```yaml
    optimizer:
      betas: [0.9, 0.95]
    trainer:
      max_steps: 500
    ```
    """
    optimizer, max_steps = run.config.optimizer, run.config.trainer.max_steps
    window = 1 / (1 - optimizer.betas[1])
    is_used = "eps" in OPTIMIZERS[optimizer.name].keys and not is_shortened(run, "optimizer.betas")
    if is_used and max_steps < window:
        yield Violation(
            "optimizer.betas",
            f"beta2 {optimizer.betas[1]:g} averages squared gradients over {window:,.0f} steps, but "
            f"trainer.max_steps is {max_steps:,}",
            f"set optimizer.betas to [{optimizer.betas[0]:g}, 0.95]",
        )
