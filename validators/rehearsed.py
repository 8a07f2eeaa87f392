"""What the rules of a rehearsal share: its parts, where it came to them, and what is measured of the plan."""

from __future__ import annotations

from typing import TypeVar

from neobert.plan import Measured, Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_rehearsal import RehearsalFacts
from validators.rule import CannotTellError

NEEDS = ("rehearsal",)

Part = TypeVar("Part")


def rehearsal_of(facts: Facts) -> RehearsalFacts:
    """Return the rehearsal; the rule has said that it needs one."""
    assert facts.rehearsal is not None
    return facts.rehearsal


def measured(part: Part | None, facts: Facts, what: str) -> Part:
    """Return a part of the rehearsal. Raises CannotTellError where it did not come to it."""
    if part is None:
        raise CannotTellError(f"{what}: {cut_short(facts) or 'it was not measured'}")
    return part


def cut_short(facts: Facts) -> str:
    """Say what ended the rehearsal before its end; empty where nothing did."""
    found = rehearsal_of(facts)
    if found.out_of_memory:
        return "the device had no room"
    return "the loss diverged" if found.diverged else ""


def no_gpu_is_required(run: ResolvedRun, plan: Plan) -> str:  # noqa: ARG001  a predicate's signature
    """Say why what only a GPU has is not judged; empty where the profile requires one."""
    if run.device == "cuda":
        return ""
    return "no profile requires a GPU" if run.profile is None else f"{run.profile.name} requires no GPU"


def measurement(facts: Facts) -> Measured | None:
    """Return what the plan is to take from a rehearsal in place of its estimates."""
    found = facts.rehearsal
    if found is None or (found.speed is None and found.memory is None):
        return None
    return Measured(
        step_time_s=None if found.speed is None else found.speed.step_time_s,
        memory_mib=None if found.memory is None else float(found.memory.peak_mib),
        source=f"a rehearsal on {found.device_name}",
    )
