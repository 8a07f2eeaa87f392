"""Numerics rules: initial loss and overfitting trial of the rehearsal."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rehearsal_parts import measured, rehearsal_of
from validators.rule import Violations, rehearsal_rule
from validators.rules.numerics import INITIAL_LOSS_SHARE

if TYPE_CHECKING:
    from neobert.tasks.spec import TaskSpec
    from validators.facts_rehearsal import OverfitFacts

UNUSED = "use these weights in the loss, or build the model without a head (auto_class AutoModel)"
MIN_FALL = 0.02
LABELS_LOSS = 1.0
"""Largest distance in nats of the initial loss of a classification from ln(classes)."""

STABLER = "lower optimizer.lr, or raise scheduler.warmup_steps"
CHECK_THE_MASKS = "check the initial weights, and how datacollator masks the targets"
CHECK_THE_LABELS = "check the initial weights, and the labels"


@rehearsal_rule("NUM005", "does-not-learn", severity=Severity.FAIL)
def does_not_learn(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A new model with an implausible initial loss, or one that cannot overfit a single batch.

    ## What it does
    Compares the loss of the first step with ln(vocabulary), within 15 %, for a classification with
    ln(classes), within 1, unless the run starts from pretrained weights; then trains ten steps on one
    microbatch at the peak rate, and requires that its loss falls by 2 %. Fails if the first or last loss is
    not finite, and if the run stops itself because of a non-finite loss, a loss spike
    (`guard.loss_spike_factor`), or weights that get no gradient in step 1 (TRN003).

    ## Why is this bad?
    An initial loss far below ln(vocabulary) means that targets leak into the input; far above it, that the
    initial weights are wrong. If a model cannot fit one batch, its gradient does not arrive, or the learning
    rate is wrong by orders of magnitude.

    ## Example
    ```text
    optimizer.lr: 6e-10
    ```

    ## Use instead
    ```text
    optimizer.lr: 6e-4
    ```
    """
    if untrained := rehearsal_of(facts).untrained:
        yield Violation("task", f"the rehearsal stopped: {untrained}", UNUSED)
        return
    if reason := rehearsal_of(facts).diverged:
        yield Violation("optimizer.lr", f"the rehearsal diverged: {reason}", STABLER)
        return
    learning = measured(rehearsal_of(facts).learning, facts, "the loss")
    initial, uniform = learning.initial_loss, log(learning.vocab_size)
    task = spec_of(run.config)
    check = CHECK_THE_MASKS if task.predicts == "masked" else CHECK_THE_LABELS
    is_fresh = initial_weights(run.config) is None and learning.vocab_size > 1  # a score has no uniform loss
    if initial is None:
        yield Violation("model", "the initial loss is not finite", check)
    elif is_fresh and abs(initial - uniform) > (allowed := _allowed(task, uniform)):
        message = (
            f"the initial loss is {initial:.4g}, but ln({learning.vocab_size:,}) is {uniform:.4g} "
            f"(within {allowed:.2g})"
        )
        yield Violation("model", message, check)
    yield from _not_learned(learning.overfit, task)


def _allowed(task: TaskSpec, uniform: float) -> float:
    """Return the limit on the distance of the initial loss from that of equal logits.

    transformers draws the weights of some heads so that logits have unit scale. In a new model they are
    nearly the same for every text, which moves the loss of a few classes by up to about 1 either way.
    """
    share = INITIAL_LOSS_SHARE * uniform
    return share if task.labels is None else max(share, LABELS_LOSS)


def _not_learned(overfit: OverfitFacts, task: TaskSpec) -> Violations:
    first, last = overfit.first, overfit.last
    not_finite = "the loss of one batch is not finite before the first update"
    if first is None and task.predicts != "masked":
        yield Violation("model", not_finite, CHECK_THE_LABELS)
    elif first is None:
        yield Violation(
            "datacollator.mlm_probability",
            not_finite,
            "raise datacollator.mlm_probability so that each batch has targets, or check the initial weights",
        )
    elif last is None or not last < first * (1 - MIN_FALL):
        yield Violation(
            "optimizer.lr",
            f"{counted(overfit.steps, 'step')} on one batch changed its loss from {first:.4g} to "
            f"{'not finite' if last is None else f'{last:.4g}'} (a fall of {MIN_FALL:.0%} needed)",
            "check optimizer.lr, trainer.gradient_clipping and the optimizer's parameter groups",
        )
