"""Schedule rules: scheduler steps and loss normalization of the rehearsal, and the rate after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schedules import build_schedule, learning_rate_at
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import early_end_reason, require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, require_group, rule
from validators.rules.checkpoint_resume import (
    CONTINUE,
    RESUME,
    differing_key,
    keys_in_differences,
    why_not_resumed,
)

SAME_RATE = 1e-6
SAME_RESUMED_RATE = 0.01
"""Minimum relative change of the learning rate; smaller changes have no visible effect on the loss."""
MAX_DIFFERENCE = 0.05
"""Maximum relative gradient difference; bf16 rounding causes a tenth, a wrong divisor several times this."""


@rehearsal_rule("SCH002", "schedule-counts-other-steps", severity=Severity.FAIL)
def schedule_counts_other_steps(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A scheduler that does not count optimizer steps.

    ## What it does
    Compares the learning rate of every rehearsed step with the plan's for that step, and the scheduler's
    count with the number of steps.

    ## Why is this bad?
    A scheduler that counts microbatches, or the steps of every rank, finishes early: with 16
    microbatches per step the rate reaches its floor at a sixteenth of the run.

    ## Example
    ```text
    scheduler.step() inside the loop over microbatches
    ```

    ## Use instead
    ```text
    scheduler.step() after optimizer.step(), once for all ranks
    ```
    """
    rehearsal, schedule = require_rehearsal(facts), plan.schedule
    if not rehearsal.schedule:
        raise CannotTellError(early_end_reason(facts) or "no steps were run")
    if rehearsal.planned_steps is not None:  # estimated before the text was counted, unlike the plan's
        schedule = build_schedule(run.config.scheduler, rehearsal.planned_steps)
    for line in rehearsal.schedule:
        expected = learning_rate_at(line.step - 1, run.config.optimizer.lr, schedule)
        if line.schedule_position != line.step:
            message = f"after step {line.step} the scheduler has counted {line.schedule_position}"
        elif not isclose(line.learning_rate, expected, rel_tol=SAME_RATE):
            message = f"step {line.step} used learning rate {line.learning_rate:.4g}, planned {expected:.4g}"
        else:
            continue
        yield Violation("scheduler", message, "step the scheduler once after each optimizer step")
        return


@rehearsal_rule("SCH003", "loss-divided-by-the-wrong-count", severity=Severity.FAIL)
def loss_divided_by_the_wrong_count(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A gradient that is not the mean over the targets of its step.

    ## What it does
    Takes two microbatches with unequal numbers of targets, different ones on every rank, and compares the
    gradient of both in one step with the weighted mean of their separate gradients. A contrastive loss
    compares all texts of a step: its reference is one graph over both microbatches, with the same dropout. A
    difference above 5 % is not rounding.

    ## Why is this bad?
    A mean of means gives more weight to targets of short microbatches and makes the loss depend on how
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
    accumulation = require_measured(require_rehearsal(facts).accumulation, facts, "accumulation")
    difference = accumulation.relative_difference
    if difference is None:
        raise CannotTellError("there was no finite gradient to compare")
    if difference > MAX_DIFFERENCE:
        first, second = accumulation.num_targets
        compares = spec_of(run.config).predicts == "pairs"
        reference = "the gradient of one graph over both" if compares else "their weighted mean"
        yield Violation(
            "trainer.gradient_accumulation_steps",
            f"the joint gradient of {first:,} and {second:,} targets differs by {difference:.1%} from "
            f"{reference} (limit {MAX_DIFFERENCE:.0%})",
            "repeat the forward pass of every microbatch with its random numbers, and add the documents of "
            "other ranks to the targets"
            if compares
            else "divide the summed loss by the targets of the whole step, over microbatches and ranks",
        )


@rule(
    "SCH005",
    "resumed-at-another-rate",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("resume",),
    inapplicable=why_not_resumed,
)
def resumed_at_another_rate(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A learning rate that jumps when the run resumes.

    ## What it does
    Compares the learning rate of the first resumed step under the schedule of the checkpoint
    and under the schedule of this run. Warns about a difference above 1 %. A run whose schedule has the
    same keys passes: where `trainer.max_epochs` ends it, the plan only estimates the last step. Compares the
    peak rate of Muon too, for `trainer.continue_from` (CKP016 does so for a resume).

    ## Why is this bad?
    A schedule that follows `trainer.max_steps` changes at every step when that key is raised. A run that had
    decayed to its floor resumes at many times that rate, without a warm-up: the loss rises, and the gain of
    the decay is lost.

    ## Example
    ```text
    max_steps raised from 700 to 1,400, resumed at step 700: learning rate 6.0e-05 -> 3.3e-04
    ```

    ## Use instead
    ```yaml
    model:
      pretrained_checkpoint: runs/first/checkpoints/700   # a new run with its own warm-up
    ```
    """
    resume = require_group(facts.resume)
    if not resume.is_verified or resume.structural_differences:  # CKP007 refuses the run
        return
    optimizer, before, step = run.config.optimizer, resume.learning_rate, resume.step
    now = learning_rate_at(step, optimizer.lr, plan.schedule)
    differing = resume.schedule_differences
    if not (before is None or differing == () or isclose(before, now, rel_tol=SAME_RESUMED_RATE)):
        yield Violation(
            differing_key(run, differing or (), CONTINUE if resume.is_continued else RESUME),
            f"the learning rate of step {step + 1:,} changes from {before:.3g} (the checkpoint's "
            f"schedule) to {now:.3g} (this run's, with decay to step {plan.schedule.decay_end:,})",
            f"restore {_format_schedule_keys(differing)} of the checkpoint, or set "
            "model.pretrained_checkpoint to start a new run from its weights",
        )
    elif resume.muon_peak is not None and OPTIMIZERS[optimizer.name].updates_matrices_by_muon:
        peak = optimizer.muon_lr or optimizer.lr
        if not isclose(resume.muon_peak, peak, rel_tol=SAME_RESUMED_RATE):
            yield Violation(
                "trainer.continue_from",
                f"the peak learning rate of Muon changes from {resume.muon_peak:.3g} (the checkpoint's) to "
                f"{peak:.3g} (this run's)",
                f"set optimizer.muon_lr to {resume.muon_peak:g}",
            )


def _format_schedule_keys(differences: Sequence[str] | None) -> str:
    """Return the keys to restore, or all keys of the schedule if the differing ones are not known."""
    if differences is None:
        return "trainer.max_steps, the scheduler section and optimizer.lr"
    return listed(keys_in_differences(differences))
