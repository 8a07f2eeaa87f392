"""SCH: the learning rate's schedule, and cadences that never come due."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule


@rule("SCH001", "schedule-beyond-run", severity=Severity.FAIL, level=Level.STATIC)
def schedule_beyond_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A schedule that the run's steps do not hold.

    ## What it does
    The warm-up ends before the run does, warm-up and decay do not overlap, and the floor is reached by
    the last step. The message gives the learning rate at the first, middle and last step.

    ## Why is this bad?
    A warm-up of 10,000 steps in a run of 500 never reaches its peak: the run is all warm-up, and only its
    poor loss says so.

    ## Example
    ```yaml
    trainer:
      max_steps: 500
    scheduler:
      warmup_steps: 10000
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 500
    scheduler:
      warmup_percent: 5
    ```
    """
    schedule, max_steps = plan.schedule, run.config.trainer.max_steps
    rates = (
        f"learning rate {plan.learning_rate_first.value:.3g} at the start, "
        f"{plan.learning_rate_middle.value:.3g} in the middle, {plan.learning_rate_last.value:.3g} at the end"
    )
    warmup = (
        "scheduler.warmup_steps"
        if run.config.scheduler.warmup_percent is None
        else "scheduler.warmup_percent"
    )
    if schedule.warmup_steps >= max_steps:
        message = f"the warm-up takes {schedule.warmup_steps:,} of {max_steps:,} steps; {rates}"
        yield Violation(warmup, message, "shorten the warm-up")
    if schedule.decay_start < schedule.warmup_steps:
        message = f"the decay starts at step {schedule.decay_start:,}, inside the warm-up; {rates}"
        yield Violation(warmup, message, "let warm-up and decay add up to the schedule's steps or less")
    if schedule.decay_end > max_steps:
        message = (
            f"the floor is reached at step {schedule.decay_end:,}, after the end at {max_steps:,}; {rates}"
        )
        yield Violation("scheduler.total_steps", message, "leave it null: it follows trainer.max_steps")


@rule("SCH004", "evaluation-never-due", severity=Severity.WARN, level=Level.STATIC)
def evaluation_never_due(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation cadence beyond the end of the run.

    ## What it does
    Warns where `trainer.eval_steps` is above `trainer.max_steps`. 0 asks for the final evaluation only
    and says so.

    ## Why is this bad?
    Somebody wanted to see a curve and will see one point.

    ## Example
    ```yaml
    trainer:
      max_steps: 500
      eval_steps: 1000
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 500
      eval_steps: 100
    ```
    """
    trainer = run.config.trainer
    if trainer.eval_steps > trainer.max_steps:
        yield Violation(
            "trainer.eval_steps",
            f"evaluation every {trainer.eval_steps:,} steps never comes due in {trainer.max_steps:,}",
            "lower it, or set it to 0 for the final one only",
        )
