"""SCH, the part that a rehearsal counts: steps of the schedule, and what a loss is divided by."""

from __future__ import annotations

from math import isclose

from neobert.plan import Plan
from neobert.plan.schedule import learning_rate_at
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsed import NEEDS, cut_short, measured, rehearsal_of
from validators.rule import CannotTellError, Violations, rule

SAME_RATE = 1e-6
MOST_DIFFERENCE = 0.05
"""Relative. Rounding in bf16 costs a tenth of it, dividing by the wrong count several times as much."""


@rule("SCH002", "schedule-counts-other-steps", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def schedule_counts_other_steps(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A schedule that counts something else than optimizer steps.

    ## What it does
    Compares the learning rate of every rehearsed step with the plan's for that step, and the schedule's own
    count with the steps that were done.

    ## Why is this bad?
    A schedule that counts microbatches, or steps of every rank, is over while the run is young: with 16
    microbatches a step the rate reaches its floor at a sixteenth of the run.

    ## Example
    ```text
    scheduler.step() inside the loop over microbatches
    ```

    ## Use instead
    ```text
    scheduler.step() behind optimizer.step(), once for all ranks
    ```
    """
    lines = rehearsal_of(facts).schedule
    if not lines:
        raise CannotTellError(cut_short(facts) or "no step was done")
    for line in lines:
        expected = learning_rate_at(line.step - 1, run.config.optimizer.lr, plan.schedule)
        if line.schedule_position != line.step:
            message = f"behind step {line.step} the schedule has counted {line.schedule_position}"
        elif not isclose(line.learning_rate, expected, rel_tol=SAME_RATE):
            message = f"step {line.step} was done at {line.learning_rate:.4g}; the plan has {expected:.4g}"
        else:
            continue
        yield Violation("scheduler", message, "let the schedule step once behind each optimizer step")
        return


@rule("SCH003", "loss-divided-by-the-wrong-count", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def loss_divided_by_the_wrong_count(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A step whose gradient is no mean over its targets.

    ## What it does
    Takes two microbatches of unequal numbers of targets, different ones on every rank, and compares the
    gradient of both in one step with the gradients of each alone, weighted by their targets. More than 5 %
    apart is no rounding.

    ## Why is this bad?
    A mean of means gives every target of a short microbatch more weight, and makes the loss depend on how
    the batch is split: the same run with other accumulation, or on other GPUs, is another experiment.

    ## Example
    ```text
    loss = cross_entropy(..., reduction="mean") / gradient_accumulation_steps
    ```

    ## Use instead
    ```text
    loss = cross_entropy(..., reduction="sum") / targets of the whole step, over all ranks
    ```
    """
    found = measured(rehearsal_of(facts).accumulation, facts, "accumulation")
    difference = found.relative_difference
    if difference is None:
        raise CannotTellError("there was no gradient to compare, or none that is finite")
    if difference > MOST_DIFFERENCE:
        first, second = found.num_targets
        yield Violation(
            "trainer.gradient_accumulation_steps",
            f"the gradient of {first:,} and {second:,} targets together is {difference:.1%} from their mean",
            "divide the summed loss by the targets of the whole step, over microbatches and ranks",
        )
