"""What is left of a run: all of it, or the steps behind the checkpoint that it goes on from."""

from __future__ import annotations

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts


def seconds_left(run: ResolvedRun, plan: Plan, facts: Facts) -> float:
    """Return how long the steps that are left take."""
    max_steps = run.config.trainer.max_steps
    return plan.eta_s.value * max(0, max_steps - resumed_step(facts)) / max_steps


def what_is_left(facts: Facts) -> str:
    """Name what is left, as the subject of a sentence."""
    step = resumed_step(facts)
    return f"the rest of the run, from step {step:,}," if step else "the run"


def resumed_step(facts: Facts) -> int:
    """Return the step of a checkpoint that was looked for, found and verified; 0 for a fresh start."""
    resume = facts.resume
    return resume.step if resume is not None and resume.is_verified else 0
