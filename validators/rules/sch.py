"""SCH: the learning rate's schedule, and cadences that never come due."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import TrainerConfig
from neobert.plan import Plan
from neobert.plan.schedule import Schedule
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

LONGEST_WARMUP = 0.5
USUAL_WARMUP_PERCENT = 5
MOST_AT_FLOOR, MOST_AT_ZERO = 0.1, 0.01
"""Shares of the run's steps."""
ZERO_FLOOR = 1e-3
"""Share of the peak. Below it a step moves no weight by anything that a loss shows."""

MOST_PROFILED = 100
"""Steps; each has thousands of events, and a viewer opens no trace of gigabytes."""


@rule("SCH001", "schedule-beyond-run", severity=Severity.FAIL, level=Level.STATIC)
def schedule_beyond_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A schedule that the run's steps do not hold.

    ## What it does
    The warm-up ends before the run does, warm-up and decay do not overlap, and the floor is reached by
    the last step, not long before it: a floor under a thousandth of the peak may hold for 1 % of the steps.
    Warns where the warm-up takes more than half of the run, and where a higher floor holds for more than
    10 % of it. The message gives the learning rate at the first, middle and last step. Warns of less than one
    percent, which is how a share looks; in steps it is beyond doubt.

    ## Why is this bad?
    A warm-up of 10,000 steps in a run of 500 never reaches its peak: the run is all warm-up, and only its
    poor loss says so. A decay to zero that is over at a tenth of the run leaves nine tenths that learn
    nothing.

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
    rates = (
        f"learning rate {plan.learning_rate_first.value:.3g} at the start, "
        f"{plan.learning_rate_middle.value:.3g} in the middle, {plan.learning_rate_last.value:.3g} at the end"
    )
    for found in (
        *_of_the_percents(run),
        *_of_the_warmup(run, plan.schedule),
        *_of_the_end(run, plan.schedule),
    ):
        yield replace(found, message=f"{found.message}; {rates}")


def _of_the_percents(run: ResolvedRun) -> Violations:
    scheduler, max_steps = run.config.scheduler, run.config.trainer.max_steps
    for name, percent in (("warmup", scheduler.warmup_percent), ("decay", scheduler.decay_percent)):
        if percent is not None and 0 < percent < 1:
            path = f"scheduler.{name}_percent"
            message = f"{percent:g} percent of {max_steps:,} steps are {max_steps * percent / 100:,.0f}"
            hint = f"write {100 * percent:g} if a share was meant, else scheduler.{name}_steps"
            yield Violation(path, message, hint, Severity.WARN)


def _of_the_warmup(run: ResolvedRun, schedule: Schedule) -> Violations:
    max_steps, steps = run.config.trainer.max_steps, schedule.warmup_steps
    is_counted = run.config.scheduler.warmup_percent is None
    path = "scheduler.warmup_steps" if is_counted else "scheduler.warmup_percent"
    taken = f"the warm-up takes {steps:,} of {max_steps:,} steps"
    usual = max_steps * USUAL_WARMUP_PERCENT // 100 if is_counted else USUAL_WARMUP_PERCENT
    hint = f"set {path} to {usual} ({USUAL_WARMUP_PERCENT} % of the run)"
    if steps >= max_steps:
        yield Violation(path, taken, hint)
        return
    if steps > LONGEST_WARMUP * max_steps:
        yield Violation(path, taken, f"{hint}; twice that is much", Severity.WARN)
    first = min(schedule.decay_start, schedule.decay_end)
    if first < steps:
        what = "starts" if schedule.decay_start < steps else "ends"
        message = f"the decay {what} at step {first:,}, inside the warm-up"
        yield Violation(path, message, "let warm-up and decay add up to the schedule's steps or less")


def _of_the_end(run: ResolvedRun, schedule: Schedule) -> Violations:
    path, max_steps = "scheduler.total_steps", run.config.trainer.max_steps
    hint = "leave it null: it follows trainer.max_steps"
    if schedule.decay_end > max_steps:
        message = f"the floor is reached at step {schedule.decay_end:,}, after the end at {max_steps:,}"
        yield Violation(path, message, hint)
        return
    steps, is_zero = max_steps - max(schedule.decay_end, schedule.warmup_steps), schedule.floor < ZERO_FLOOR
    if steps > (MOST_AT_ZERO if is_zero else MOST_AT_FLOOR) * max_steps:
        message = f"{steps:,} of {max_steps:,} steps lie behind the decay, at {schedule.floor:g} of the peak"
        yield Violation(path, message, hint, None if is_zero else Severity.WARN)


@rule("SCH004", "evaluation-never-due", severity=Severity.WARN, level=Level.STATIC)
def evaluation_never_due(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation or logging cadence, or a trace, beyond the end of the run.

    ## What it does
    Warns where `trainer.eval_steps` is above `trainer.max_steps`. 0 asks for the final evaluation only
    and says so. In a production run it warns likewise of `trainer.logging_steps`. It warns of
    `trainer.profile_steps` and `trainer.memory_snapshot_step` that the run never reaches, and of a profile of
    more than 100 steps.

    ## Why is this bad?
    Somebody wanted to see a curve and will see one point. Heartbeats tell no loss and no speed before the
    first line of metrics, and nothing that wears a run down is looked for.

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
    if run.is_production and trainer.logging_steps > trainer.max_steps:
        yield Violation(
            "trainer.logging_steps",
            f"a line of metrics every {trainer.logging_steps:,} steps never comes due in "
            f"{trainer.max_steps:,}",
            "lower it: a line costs milliseconds",
        )
    yield from _of_traces(trainer)


def _of_traces(trainer: TrainerConfig) -> Violations:
    first, last = trainer.profile_steps or (1, 1)
    if not first <= last <= trainer.max_steps:
        yield Violation(
            "trainer.profile_steps",
            f"no step is profiled: {first:,} to {last:,} is not a range within {trainer.max_steps:,} steps",
            "set the first and the last step to profile, such as [20, 22]",
        )
    elif last - first >= MOST_PROFILED:
        yield Violation(
            "trainer.profile_steps",
            f"{last - first + 1:,} steps are profiled (limit {MOST_PROFILED}): events stay in host memory",
            "profile fewer steps: three show what repeats",
        )
    if (trainer.memory_snapshot_step or 0) > trainer.max_steps:
        yield Violation(
            "trainer.memory_snapshot_step",
            f"step {trainer.memory_snapshot_step:,} is never reached in {trainer.max_steps:,} steps",
            "lower memory_snapshot_step",
        )
