"""Access to parts of a rehearsal, and measurements that replace the plan's estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neobert.plan import Measured, Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.rule import CannotTellError, require_group

if TYPE_CHECKING:
    from validators.facts_rehearsal import RehearsalFacts

Part = TypeVar("Part")


def require_rehearsal(facts: Facts) -> RehearsalFacts:
    """Return the rehearsal facts; only for rules that list `rehearsal` in `needs`."""
    return require_group(facts.rehearsal)


def require_measured(part: Part | None, facts: Facts, name: str) -> Part:
    """Return a part of the rehearsal. Raises CannotTellError if it was not measured."""
    if part is None:
        raise CannotTellError(
            f"{name} was not measured{f': {reason}' if (reason := early_end_reason(facts)) else ''}"
        )
    return part


def early_end_reason(facts: Facts) -> str:
    """Return the reason why the rehearsal ended early, or an empty string if it did not."""
    rehearsal = require_rehearsal(facts)
    if rehearsal.out_of_memory:
        return "the device ran out of memory"
    if rehearsal.untrained:
        return "weights got no gradient"
    return "the loss diverged" if rehearsal.diverged else ""


def reason_without_gpu(run: ResolvedRun, plan: Plan) -> str:  # noqa: ARG001  a predicate's signature
    """Return the reason why GPU measurements do not apply; empty if the profile requires a GPU."""
    if run.device == "cuda":
        return ""
    if run.profile is None:
        return "the run has no profile that requires a GPU"
    return f"{run.profile.name} requires no GPU"


def rehearsal_measurements(facts: Facts) -> Measured | None:
    """Return the measurements that replace the plan's estimates, or None if there are none."""
    rehearsal = facts.rehearsal
    if rehearsal is None or (rehearsal.speed is None and rehearsal.memory is None):
        return None
    return Measured(
        step_time_s=None if rehearsal.speed is None else rehearsal.speed.step_time_s,
        memory_mib=None if rehearsal.memory is None else float(rehearsal.memory.peak_mib),
        source=f"a rehearsal on {rehearsal.device_name}",
    )
