"""Schedule rules: learning-rate schedule, and intervals longer than the run."""

from __future__ import annotations

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import RunConfig
from neobert.plan import Plan, pieces
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.remaining import is_shortened_by_override
from validators.rule import Violations, rule

LONGEST_WARMUP = 0.5
USUAL_WARMUP_PERCENT = 5
MAX_AT_FLOOR, MAX_AT_ZERO = 0.1, 0.01
"""Limits on the steps after the decay, at a floor above zero and at zero, as shares of all steps."""
HIGHEST_FLOOR = 0.1
"""Highest usual minimum learning rate, as a share of the peak, in published recipes."""
ZERO_FLOOR = 1e-3
"""Share of the peak learning rate below which steps have no visible effect on the loss."""

USUAL_PIECES_PERCENT = 25
"""Percentage of steps with pieces of documents, as measured."""
MAX_PROFILED = 100
"""Maximum profiled steps; each has thousands of events, and viewers cannot open traces of gigabytes."""


@rule("SCH001", "schedule-beyond-run", severity=Severity.FAIL, level=Level.STATIC)
def schedule_beyond_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A learning-rate schedule that does not fit the run's steps.

    ## What it does
    Fails if the warm-up does not end before the run, if warm-up and decay overlap, if the decay ends after
    the last step, and if a floor below a thousandth of the peak lasts more than 1 % of the steps. Warns if
    the warm-up takes more than half of the run, or does not end before `trainer.max_steps` of the command
    line, and if a higher floor lasts more than 10 % of it. The warm-ups of batch size and sequence length
    have the same limits. The message gives the learning rate at the first, middle and last step. Also warns
    about percentages below 1, which look like fractions; a number of steps is unambiguous.

    ## Why is this bad?
    With a warm-up of 10,000 steps, a run of 500 never reaches its peak rate, and only its poor loss shows
    it. If a decay to zero ends after a tenth of the run, the other nine tenths learn nothing.

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
    for violation in (
        *_percent_violations(run, plan),
        *_warmup_violations(run, plan),
        *_decay_violations(plan),
        *_size_warmup_violations(run.config, plan.max_steps.value),
    ):
        yield violation._replace(message=f"{violation.message}; {rates}")


def _percent_violations(run: ResolvedRun, plan: Plan) -> Violations:
    scheduler, max_steps = run.config.scheduler, plan.max_steps.value
    for name, percent in (("warmup", scheduler.warmup_percent), ("decay", scheduler.decay_percent)):
        if percent is not None and 0 < percent < 1:
            path = f"scheduler.{name}_percent"
            message = f"{path} {percent:g} of {max_steps:,} steps is {max_steps * percent / 100:,.0f} steps"
            hint = f"set {path} to {100 * percent:g} if a fraction was meant, else use scheduler.{name}_steps"
            yield Violation(path, message, hint, Severity.WARN)


def _warmup_violations(run: ResolvedRun, plan: Plan) -> Violations:
    schedule, max_steps = plan.schedule, plan.max_steps.value
    steps = schedule.warmup_steps
    is_counted = run.config.scheduler.warmup_percent is None
    path = "scheduler.warmup_steps" if is_counted else "scheduler.warmup_percent"
    taken = f"the warm-up takes {steps:,} of {max_steps:,} steps (limit {LONGEST_WARMUP:.0%})"
    usual = max_steps * USUAL_WARMUP_PERCENT // 100 if is_counted else USUAL_WARMUP_PERCENT
    hint = f"set {path} to {usual} ({USUAL_WARMUP_PERCENT} % of the run)"
    if steps >= max_steps:
        yield Violation(path, taken, hint, Severity.WARN if is_shortened_by_override(run, path) else None)
        return
    if steps > LONGEST_WARMUP * max_steps:
        yield Violation(path, taken, hint, Severity.WARN)
    first = min(schedule.decay_start, schedule.decay_end)
    if first < steps:
        edge = "starts" if schedule.decay_start < steps else "ends"
        message = f"the decay {edge} at step {first:,}, during the warm-up (which ends at {steps:,})"
        unit = "steps" if run.config.scheduler.decay_percent is None else "percent"
        way_out = f"lower scheduler.decay_{unit}" if edge == "starts" else "raise scheduler.total_steps"
        yield Violation(path, message, f"lower {path} or {way_out}")


def _size_warmup_violations(config: RunConfig, max_steps: int) -> Violations:
    """Yield violations for the warm-ups of batch size and sequence length."""
    trainer = config.trainer
    batch = "trainer.batch_size_warmup_steps"
    warmups = [
        ("batch size", batch, trainer.batch_size_warmup_steps, max_steps * USUAL_WARMUP_PERCENT // 100)
    ]
    if pieces.piece_length(config) is not None:
        steps, percent = pieces.num_piece_steps(trainer, max_steps), trainer.sequence_length_warmup_percent
        path, usual = pieces.PERCENT, USUAL_PIECES_PERCENT
        if percent is None:
            path, usual = pieces.STEPS, max_steps * usual // 100
        warmups.append(("sequence length", path, steps, usual))
    for name, path, steps, usual in warmups:
        if steps > LONGEST_WARMUP * max_steps:
            yield Violation(
                path,
                f"the {name.replace(' ', '-')} warm-up takes {steps:,} of {max_steps:,} steps (limit "
                f"{LONGEST_WARMUP:.0%})",
                f"set {path} to {usual}",
                None if steps >= max_steps else Severity.WARN,
            )


def _decay_violations(plan: Plan) -> Violations:
    path, schedule, max_steps = "scheduler.total_steps", plan.schedule, plan.max_steps.value
    hint = f"remove {path}: the default is trainer.max_steps"
    if schedule.decay_end > max_steps:
        message = f"the decay ends at step {schedule.decay_end:,}, after the last step ({max_steps:,})"
        yield Violation(path, message, hint)
        return
    steps, is_zero = max_steps - max(schedule.decay_end, schedule.warmup_steps), schedule.floor < ZERO_FLOOR
    most = MAX_AT_ZERO if is_zero else MAX_AT_FLOOR
    if steps > most * max_steps:
        message = (
            f"{steps:,} of {max_steps:,} steps come after the decay, at {schedule.floor:g} of the peak rate "
            f"(limit {most:.0%})"
        )
        yield Violation(path, message, hint, None if is_zero else Severity.WARN)


@rule("SCH006", "decay-to-high-floor", severity=Severity.WARN, level=Level.STATIC)
def decay_to_high_floor(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A decay that ends far above zero.

    ## What it does
    Warns if the learning rate decays to more than a tenth of its peak (`scheduler.final_lr_ratio`). A ratio
    of 1 is a constant rate, which a later run may decay, and is not reported.

    ## Why is this bad?
    The gain of a decay comes from its last part, where small steps average out the noise of the gradient.
    Decayed to zero, a model of 610M parameters had a lower loss after 80 tokens per parameter than after 200
    with a decay to a tenth (arXiv:2502.15938); a higher floor gains even less.

    ## Example
    ```yaml
    scheduler:
      final_lr_ratio: 0.5
    ```

    ## Use instead
    ```yaml
    scheduler:
      final_lr_ratio: 0.0
    ```
    """
    floor = plan.schedule.floor
    if HIGHEST_FLOOR < floor < 1:
        yield Violation(
            "scheduler.final_lr_ratio",
            f"the learning rate decays to {floor:g} of its peak (limit {HIGHEST_FLOOR:g})",
            "set scheduler.final_lr_ratio to 0, or to 1 for a constant rate that a later run decays",
        )


@rule("SCH004", "evaluation-never-due", severity=Severity.WARN, level=Level.STATIC)
def evaluation_never_due(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An interval of evaluation, logging, traces or QK-clip that is longer than the run.

    ## What it does
    Warns if `trainer.eval_steps` is above `trainer.max_steps`; 0 explicitly requests only the final
    evaluation. In a production run, also warns about `trainer.logging_steps`. Warns about
    `trainer.profile_steps` and `trainer.memory_snapshot_step` beyond the last step, about profiling
    more than 100 steps, and about an `optimizer.qk_clip_interval` of muonclip above `trainer.max_steps`.
    Intervals that only `trainer.max_steps` on the command line made too long are due at the last step.

    ## Why is this bad?
    The expected curve will have a single point. Before the first line of metrics, heartbeats have no loss
    and no throughput, and degradation is not detected. If attention logits are never measured, muonclip is
    plain Muon under another name.

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
    if trainer.eval_steps > trainer.max_steps and not is_shortened_by_override(run, "trainer.eval_steps"):
        yield Violation(
            "trainer.eval_steps",
            f"trainer.eval_steps {trainer.eval_steps:,} exceeds trainer.max_steps {trainer.max_steps:,}",
            "lower trainer.eval_steps, or set trainer.eval_steps to 0 for the final evaluation only",
        )
    is_logged = trainer.logging_steps <= trainer.max_steps or is_shortened_by_override(
        run, "trainer.logging_steps"
    )
    if run.is_production and not is_logged:
        yield Violation(
            "trainer.logging_steps",
            f"trainer.logging_steps {trainer.logging_steps:,} exceeds trainer.max_steps "
            f"{trainer.max_steps:,}",
            "lower trainer.logging_steps",
        )
    optimizer = run.config.optimizer
    if OPTIMIZERS[optimizer.name].clips_logits and optimizer.qk_clip_interval > trainer.max_steps:
        yield Violation(
            "optimizer.qk_clip_interval",
            f"qk_clip_interval {optimizer.qk_clip_interval:,} exceeds trainer.max_steps "
            f"{trainer.max_steps:,}",
            "lower optimizer.qk_clip_interval; 10 is usual",
        )
    if trainer.profile_steps is not None:
        yield from _profile_violations(*trainer.profile_steps, trainer.max_steps)
    if trainer.memory_snapshot_step is not None and trainer.memory_snapshot_step > trainer.max_steps:
        yield Violation(
            "trainer.memory_snapshot_step",
            f"memory_snapshot_step {trainer.memory_snapshot_step:,} exceeds trainer.max_steps "
            f"{trainer.max_steps:,}",
            "lower trainer.memory_snapshot_step",
        )


def _profile_violations(first: int, last: int, max_steps: int) -> Violations:
    if not first <= last <= max_steps:
        yield Violation(
            "trainer.profile_steps",
            f"no step is profiled: [{first:,}, {last:,}] is not a range within {max_steps:,} steps",
            "set trainer.profile_steps to the first and last step to profile, e.g. [20, 22]",
        )
    elif last - first >= MAX_PROFILED:
        yield Violation(
            "trainer.profile_steps",
            f"{last - first + 1:,} steps are profiled (limit {MAX_PROFILED}); host memory holds all events",
            "shorten trainer.profile_steps: three steps are enough",
        )
