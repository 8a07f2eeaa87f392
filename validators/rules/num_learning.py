"""NUM, the part that a rehearsal trains: what a new model knows, and whether it learns."""

from __future__ import annotations

from math import log

from neobert.families.table import initial_weights
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import OverfitFacts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, measured, rehearsal_of
from validators.rule import Violations, rule
from validators.rules.num import INITIAL_LOSS_SHARE

LEAST_FALL = 0.02
CALMER = "lower the peak rate, or lengthen the warm-up: scheduler.warmup_steps"


@rule("NUM005", "does-not-learn", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def does_not_learn(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A new model that knows too much or too little, or that cannot learn one batch by heart.

    ## What it does
    Compares the loss of the first step with ln(vocabulary), within 15 %, unless the run starts from trained
    weights; then trains on one microbatch at the peak rate, ten times, and asks that its loss falls by 2 %.
    A loss that is no finite number fails, first or last, and so does a run that stops itself for one, or for
    a loss that leaps (`guard.loss_spike_factor`).

    ## Why is this bad?
    A first loss far below ln(vocabulary) means that the targets leak into the input; far above it, that the
    initial weights are wrong. A model that cannot fit one batch has a gradient that does not arrive, or a
    rate that is off by orders of magnitude.

    ## Example
    ```text
    optimizer.lr: 6e-10
    ```

    ## Use instead
    ```text
    optimizer.lr: 6e-4
    ```
    """
    if because := rehearsal_of(facts).diverged:
        yield Violation("optimizer.lr", f"the rehearsal diverged: {because}", CALMER)
        return
    found = measured(rehearsal_of(facts).learning, facts, "the loss")
    uniform = log(found.vocab_size)
    is_fresh = initial_weights(run.config) is None
    if found.initial_loss is None or (
        is_fresh and abs(found.initial_loss / uniform - 1) > INITIAL_LOSS_SHARE
    ):
        yield Violation(
            "model",
            f"the first loss is {_shown(found.initial_loss)}; ln({found.vocab_size:,}) is {uniform:.4g}",
            "look at the initial weights and at what the targets are hidden by: datacollator",
        )
    yield from _not_learned(found.overfit)


def _not_learned(overfit: OverfitFacts) -> Violations:
    first, last = overfit.first, overfit.last
    if first is None:
        yield Violation(
            "datacollator.mlm_probability",
            "the loss of one batch is no finite number before anything was learned from it",
            "have some tokens predicted in every batch; else look at the initial weights",
        )
    elif last is None or not last < first * (1 - LEAST_FALL):
        yield Violation(
            "optimizer.lr",
            f"{overfit.steps} steps took one batch's loss from {first:.4g} to {_shown(last)}",
            "look at the peak rate, the clip and the optimizer's groups",
        )


def _shown(loss: float | None) -> str:
    return "no finite number" if loss is None else f"{loss:.4g}"
