"""Remaining part of a run: all of it, or the steps after the checkpoint that it resumes from."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts


def seconds_left(run: ResolvedRun, plan: Plan, facts: Facts) -> float:
    """Return the duration of the remaining steps."""
    max_steps = run.config.trainer.max_steps
    return plan.eta_s.value * max(0, max_steps - resumed_step(facts)) / max_steps


def remaining_part(facts: Facts) -> str:
    """Name the remaining part, as the subject of a sentence."""
    step = resumed_step(facts)
    return f"the rest of the run, from step {step:,}," if step else "the run"


def resumed_step(facts: Facts) -> int:
    """Return the step of the verified checkpoint to resume from; 0 for a fresh start."""
    resume = facts.resume
    return resume.step if resume is not None and resume.is_verified else 0
