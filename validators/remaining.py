"""Remaining part of a run, from the step of its checkpoint."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.plan.derived import Start
from neobert.plan.remaining import Remaining, remaining_from
from profiles.registry import ResolvedRun
from validators.facts import Facts

MAX_STEPS, MAX_EPOCHS = "trainer.max_steps", "trainer.max_epochs"


def run_start(plan: Plan, facts: Facts) -> Start:
    """Return the start of the run: the verified checkpoint's step, or before probing, the assumed start."""
    resume, assumed = facts.resume, plan.assumptions.start
    if resume is None:
        return assumed
    step = resume.step if resume.is_verified else 0
    return Start(step, step if resume.is_continued else min(step, assumed.continued_step))


def remaining_in_launch(run: ResolvedRun, plan: Plan, facts: Facts) -> Remaining:
    """Return the part of the run that this launch trains."""
    return remaining_from(run.config, plan, run_start(plan, facts).step)


def remaining_in_run(run: ResolvedRun, plan: Plan, facts: Facts) -> Remaining:
    """Return the part that all launches of this run train, without the steps of a run that it continues."""
    return remaining_from(run.config, plan, run_start(plan, facts).continued_step)


def remaining_epochs(plan: Plan, part: Remaining) -> float | None:
    """Return the number of epochs in this part of the run, or None if the size of the text is unknown."""
    epochs = plan.epochs.value
    return None if epochs is None else epochs * part.tokens.value / plan.total_tokens.value


def limiting_key(run: ResolvedRun, plan: Plan) -> str:
    """Return the key that ends the run: `trainer.max_epochs` if it is reached before `trainer.max_steps`."""
    return MAX_EPOCHS if plan.max_steps.value < run.config.trainer.max_steps else MAX_STEPS


def sentence_subject(left: Remaining) -> str:
    """Return the subject of a message: `the run`, or `the rest of the run` with its first step."""
    return f"the rest of the run, from step {left.first_step:,}," if left.first_step else "the run"


def is_shortened_by_override(run: ResolvedRun, key: str) -> bool:
    """Return whether an override shortens the run while `key` still has the value for the longer run."""
    return run.origin(MAX_STEPS).kind == "override" != run.origin(key).kind
