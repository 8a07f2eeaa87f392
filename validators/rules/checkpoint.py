"""Checkpoint rules: save interval, work at risk, and retention of checkpoints."""

from __future__ import annotations

from math import lcm

from neobert.plan import Plan
from neobert.plan.saves import MIN_KEPT
from neobert.tasks.specs import known_metrics
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.thresholds import LONG_GPU_STEPS, is_long_on_gpu

SAVE_STEPS = "trainer.save_steps"


def _why_save_is_optional(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why CKP001 does not apply to a short run, or an empty string."""
    if run.is_production or is_long_on_gpu(run, plan):
        return ""
    return f"applies to production runs, and to GPU runs from {LONG_GPU_STEPS:,} steps"


@rule(
    "CKP001",
    "no-save-cadence",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_why_save_is_optional,
)
def no_save_cadence(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run or long GPU run that writes no checkpoint before its last step.

    ## What it does
    Requires a save before the last step: `trainer.save_steps` above 0 and below `trainer.max_steps`, or below
    the last step of `trainer.max_epochs` if that is earlier. The final checkpoint is always written. Smoke
    and development runs need no other save below 5,000 steps or without a GPU; CKP002 limits the work that
    they can lose.

    ## Why is this bad?
    A run without periodic saves has no result until its last minute, and nothing to resume from after a
    crash. A missing checkpoint is also how people notice a wrong run, a day too late.

    ## Example
    ```yaml
    trainer:
      max_steps: 50000
      save_steps: 0
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 50000
      save_steps: 1000
    ```
    """
    save_steps, max_steps = run.config.trainer.save_steps, plan.max_steps.value
    if save_steps == 0:
        message = f"no checkpoint before the last step ({max_steps:,})"
    elif save_steps >= max_steps:
        message = f"the first save, at step {save_steps:,}, is not before the last step ({max_steps:,})"
    else:
        return
    steps = min(_max_steps_at_risk(run, plan), max_steps // 2)
    hint = _save_steps_hint(steps) if max_steps > 1 else "raise trainer.max_steps above 1"
    yield Violation(SAVE_STEPS, message, hint)


@rule("CKP002", "work-at-risk", severity=Severity.FAIL, level=Level.STATIC)
def work_at_risk(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Too much work lost if the run crashes between two saves.

    ## What it does
    Multiplies the steps between saves by the step time (measured, or derived from FLOPs and the expected
    MFU of the profile) and compares the product with `guard.max_lost_minutes`. Its largest value is 240; to
    accept more, waive this rule.

    ## Why is this bad?
    A number of steps means nothing without their duration: 5,000 steps are 20 minutes of one run and 14
    hours of another.

    ## Example
    ```yaml
    trainer:
      save_steps: 20000   # at 0.7 s per step: 3.9 hours
    guard:
      max_lost_minutes: 60
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 2000
    guard:
      max_lost_minutes: 60
    ```
    """
    limit, at_risk = run.config.guard.max_lost_minutes, plan.minutes_at_risk
    if at_risk.value > limit:
        steps = _max_steps_at_risk(run, plan)
        yield Violation(
            SAVE_STEPS,
            f"a crash can lose {at_risk.value:,.1f} minutes ({at_risk.reason}); guard.max_lost_minutes is "
            f"{limit:g}",
            _save_steps_hint(steps)
            if steps
            else "make steps faster, because one step exceeds guard.max_lost_minutes",
        )


def _save_steps_hint(steps: int) -> str:
    """Return the hint to set save_steps to at most `steps`, but above 0, which disables saving."""
    return f"set {SAVE_STEPS} to {steps} or less, but above 0" if steps > 1 else f"set {SAVE_STEPS} to 1"


def _max_steps_at_risk(run: ResolvedRun, plan: Plan) -> int:
    """Return the number of whole steps that fit into guard.max_lost_minutes."""
    return int(run.config.guard.max_lost_minutes * 60 / plan.step_time_s.value)


@rule("CKP003", "single-checkpoint", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def single_checkpoint(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run that keeps only one checkpoint.

    ## What it does
    Requires `trainer.save_total_limit` of at least 2; 0 keeps all. The trainer always keeps two, but with a
    limit of 1 only one was planned for. Smoke runs are exempt.

    ## Why is this bad?
    If the only checkpoint is damaged, or was saved after the loss diverged, there is no earlier one to
    resume from.

    ## Example
    ```yaml
    trainer:
      save_total_limit: 1
    ```

    ## Use instead
    ```yaml
    trainer:
      save_total_limit: 3
    ```
    """
    kept = run.config.trainer.save_total_limit
    if 0 < kept < MIN_KEPT:
        yield Violation(
            "trainer.save_total_limit",
            f"trainer.save_total_limit is {kept} (at least {MIN_KEPT})",
            f"set trainer.save_total_limit to {MIN_KEPT} or more; 0 keeps all",
        )


@rule("CKP010", "best-never-judged", severity=Severity.FAIL, level=Level.STATIC)
def best_never_judged(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A best-checkpoint metric for checkpoints that are not evaluated.

    ## What it does
    If `trainer.metric_for_best_model` is set, requires `trainer.save_steps` to be a multiple of
    `trainer.eval_steps`, so that each checkpoint is evaluated at its own step. The last step is always both
    saved and evaluated. Warns if the run is evaluated before its last step, but saved at that step only. Data
    preparation fails with this code without evaluation text.

    ## Why is this bad?
    A checkpoint without an evaluation at its step can never be the best one, so the link names the best of
    the few that happened to be evaluated. If there is a single checkpoint, the metric selects nothing.

    ## Example
    ```yaml
    trainer:
      metric_for_best_model: eval/loss
      save_steps: 1000
      eval_steps: 300
    ```

    ## Use instead
    ```yaml
    trainer:
      metric_for_best_model: eval/loss
      save_steps: 1000
      eval_steps: 500
    ```
    """
    trainer = run.config.trainer
    save_steps, eval_steps = trainer.save_steps, trainer.eval_steps
    if trainer.metric_for_best_model is None:
        return
    last = plan.max_steps.value
    if not 0 < save_steps < last:
        if 0 < eval_steps < last:
            yield Violation(
                "trainer.metric_for_best_model",
                f"no checkpoint is saved before the last step ({last:,}): the best one is always the last",
                f"set trainer.save_steps to {eval_steps}, the value of trainer.eval_steps, or "
                "trainer.metric_for_best_model to null",
                Severity.WARN,
            )
        return
    if eval_steps == 0 or save_steps % eval_steps:
        often = f"every {eval_steps:,} steps" if eval_steps else "only at the end"
        yield Violation(
            "trainer.metric_for_best_model",
            f"checkpoints are saved every {save_steps:,} steps, but evaluated {often}",
            _matching_steps_hint(save_steps, eval_steps),
        )


def _matching_steps_hint(save_steps: int, eval_steps: int) -> str:
    multiple = save_steps - save_steps % eval_steps if eval_steps else 0
    if multiple:
        return f"set {SAVE_STEPS} to {multiple}, a multiple of trainer.eval_steps"
    return f"set trainer.eval_steps to {save_steps}, the value of {SAVE_STEPS}, or a divisor of it"


@rule("CKP014", "worst-kept-as-best", severity=Severity.FAIL, level=Level.STATIC)
def worst_kept_as_best(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A value of `trainer.greater_is_better` that keeps the worst checkpoint as the best.

    ## What it does
    Compares `trainer.greater_is_better` with the direction of `trainer.metric_for_best_model`: lower is
    better for `eval/loss`, higher for every other metric.

    ## Why is this bad?
    `checkpoints/best` is then the worst checkpoint that was evaluated, `trainer.save_total_limit` deletes the
    good ones, and early stopping ends the run because it improves.

    ## Example
    ```yaml
    trainer:
      metric_for_best_model: eval/loss
      greater_is_better: true   # copied from a run that selected by accuracy
    ```

    ## Use instead
    ```yaml
    trainer:
      metric_for_best_model: eval/loss
      greater_is_better: null
    ```
    """
    trainer, path = run.config.trainer, "trainer.greater_is_better"
    metric, requested = trainer.metric_for_best_model, trainer.greater_is_better
    known = known_metrics().get(metric or "")
    if known is None or requested is None or requested == known.is_higher_better:
        return
    better = "a lower" if requested else "a higher"
    message = f"{path} is {str(requested).lower()}, but {better} {metric} is better"
    yield Violation(path, message, f"remove {path}: the default follows from the metric")


@rule("CKP015", "kept-steps-never-saved", severity=Severity.WARN, level=Level.STATIC)
def kept_steps_never_saved(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Checkpoints to keep at steps that are not saved.

    ## What it does
    If `trainer.save_keep_every` and `trainer.save_steps` are both set, warns unless one is a multiple of the
    other: only common multiples of both are saved and kept.

    ## Why is this bad?
    The checkpoints that were meant to stay, to compare them or to continue from the plateau, are deleted by
    `trainer.save_total_limit`, and nobody notices before they are needed.

    ## Example
    ```yaml
    trainer:
      save_steps: 2000
      save_keep_every: 5000   # keeps 10,000, 20,000, ...
    ```

    ## Use instead
    ```yaml
    trainer:
      save_steps: 2500
      save_keep_every: 5000
    ```
    """
    save_steps, keep_every = run.config.trainer.save_steps, run.config.trainer.save_keep_every
    path, kept = "trainer.save_keep_every", lcm(save_steps, keep_every)  # 0 if one of them is
    if kept in (save_steps, keep_every):
        return
    nearest = save_steps * max(1, round(keep_every / save_steps))
    yield Violation(
        path,
        f"{path} is {keep_every:,}, but checkpoints are saved every {save_steps:,} steps: only multiples of "
        f"{kept:,} are kept",
        f"set {path} to {nearest}, a multiple of {SAVE_STEPS}",
    )
