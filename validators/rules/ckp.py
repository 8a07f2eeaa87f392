"""CKP, the static part: whether, how often and how safely a run is saved."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.plan.saves import MIN_KEPT
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

SAVE_STEPS = "trainer.save_steps"


@rule("CKP001", "no-save-cadence", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def no_save_cadence(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run that saves nothing before its end.

    ## What it does
    Asks for a save before the last step: `trainer.save_steps` above 0 and below `trainer.max_steps`. The
    final checkpoint is always written. A smoke run may live without one; CKP002 judges what it would
    lose.

    ## Why is this bad?
    A run without a cadence has nothing to show until its last minute, and nothing to resume from after a
    crash. The missing checkpoint is also the sign by which people find a wrong run, a day too late.

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
    save_steps, max_steps = run.config.trainer.save_steps, run.config.trainer.max_steps
    if save_steps == 0:
        message = f"nothing is saved before step {max_steps:,}"
    elif save_steps >= max_steps:
        message = f"the first save, at step {save_steps:,}, is not before the end at step {max_steps:,}"
    else:
        return
    steps = min(_steps_at_risk(run, plan), max_steps // 2)
    hint = _saving_every(steps) if max_steps > 1 else "raise trainer.max_steps: one step has none before it"
    yield Violation(SAVE_STEPS, message, hint)


@rule("CKP002", "work-at-risk", severity=Severity.FAIL, level=Level.STATIC)
def work_at_risk(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """More work between two saves than anybody is willing to lose.

    ## What it does
    Multiplies the steps between saves with the step time, measured where there is a measurement and
    derived from FLOPs and the profile's expected share of the peak elsewhere, and compares it with
    `guard.max_lost_minutes`, which takes 240 at most: who will lose more answers for it in a waiver.

    ## Why is this bad?
    A number of steps means nothing without their speed: 5,000 steps are 20 minutes of one run and 14
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
        steps = _steps_at_risk(run, plan)
        yield Violation(
            SAVE_STEPS,
            f"a crash may cost {at_risk.value:,.1f} minutes, more than {limit:g} ({at_risk.reason})",
            _saving_every(steps) if steps else "make the step faster: one exceeds the limit",
        )


def _saving_every(steps: int) -> str:
    """Name the lower end too: 0 saves nothing."""
    return f"set {SAVE_STEPS} to {steps}, or to less but above 0" if steps > 1 else f"set {SAVE_STEPS} to 1"


def _steps_at_risk(run: ResolvedRun, plan: Plan) -> int:
    """Return how many steps fit into the minutes that a crash may cost."""
    return int(run.config.guard.max_lost_minutes * 60 / plan.step_time_s.value)


@rule("CKP003", "single-checkpoint", severity=Severity.FAIL, level=Level.STATIC, production_only=True)
def single_checkpoint(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A production run that keeps one checkpoint only.

    ## What it does
    Asks that at least two checkpoints are kept; 0 keeps all. The trainer keeps two in any case, but a run
    that asks for one was planned, and its disk chosen, for one. A smoke run may ask for it.

    ## Why is this bad?
    If the only one turns out to be damaged, or was taken after the loss went wrong, there is no other to
    go back to.

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
            "trainer.save_total_limit", f"{kept} checkpoint is kept", f"keep {MIN_KEPT} or more; 0 keeps all"
        )


@rule("CKP010", "best-never-judged", severity=Severity.FAIL, level=Level.STATIC)
def best_never_judged(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A best checkpoint among checkpoints that nobody evaluates.

    ## What it does
    Where `trainer.metric_for_best_model` is set, asks that every checkpoint is saved at a step that is
    evaluated too: `trainer.save_steps` is a multiple of `trainer.eval_steps`. The last step always is both.
    Text with nothing to evaluate on is refused with this code when it is prepared.

    ## Why is this bad?
    A checkpoint is judged by the evaluation of its own step. One that has none is never the best, and the
    link then names the best of the few that were judged by chance.

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
    is_saved_before_the_end = 0 < save_steps < trainer.max_steps
    if trainer.metric_for_best_model is None or not is_saved_before_the_end:
        return
    if eval_steps == 0 or save_steps % eval_steps:
        often = f"every {eval_steps:,} steps" if eval_steps else "at the end only"
        yield Violation(
            "trainer.metric_for_best_model",
            f"checkpoints are saved every {save_steps:,} steps, and evaluations are made {often}",
            _way_to_judge(save_steps, eval_steps),
        )


def _way_to_judge(save_steps: int, eval_steps: int) -> str:
    multiple = save_steps - save_steps % eval_steps if eval_steps else 0
    if multiple:
        return f"set {SAVE_STEPS} to {multiple}, a multiple of trainer.eval_steps"
    return f"set trainer.eval_steps to {save_steps}, as {SAVE_STEPS}, or to a divisor of it"
