"""Remaining steps, tokens, time and cost of a run that starts from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neobert.config.schedules import microbatches_before
from neobert.config.schema import RunConfig
from neobert.plan.build import Plan
from neobert.plan.derived import AFRESH, Derived, Start
from neobert.plurals import percent
from neobert.runfiles.run_dir import CHECKPOINTS, NEVER, NEWEST


@dataclass(frozen=True, slots=True)
class Remaining:
    """Remaining part of a run, from the step `first_step` to its end."""

    first_step: int
    steps: int
    tokens: Derived[int]
    eta_s: Derived[float]
    cost: Derived[float | None]


def remaining_from(config: RunConfig, plan: Plan, first_step: int) -> Remaining:
    """Return the plan's totals for the steps from `first_step`; evaluations count in proportion."""
    total, trainer = plan.max_steps.value, config.trainer
    steps = max(0, total - first_step)
    if steps == total:
        return Remaining(0, total, plan.total_tokens, plan.eta_s, plan.cost)
    share = 1 - microbatches_before(total - steps, trainer) / microbatches_before(total, trainer)
    left, cost = f"{percent(share)} of the run is left", plan.cost.value
    return Remaining(
        first_step,
        steps,
        Derived(round(share * plan.total_tokens.value), f"{plan.total_tokens.reason}; {left}"),
        Derived(share * plan.eta_s.value, f"{plan.eta_s.reason}; {left}"),
        plan.cost if cost is None else Derived(share * cost, f"{plan.cost.reason}; {left}"),
    )


def find_start(config: RunConfig) -> Start:
    """Return the step that a run starts from, by the names of checkpoint folders; 0 if it finds none."""
    trainer = config.trainer
    try:
        root = Path(trainer.output_dir).expanduser() / CHECKPOINTS
        names_none = trainer.continue_from is None and trainer.resume_from_checkpoint in (*NEWEST, NEVER)
        if names_none and not root.is_dir():
            return AFRESH
        # Most commands find no checkpoint, and `lint` is to import few modules.
        from neobert.runfiles.checkpoint.first_step import continued_step, resumed_step

        continued = continued_step(trainer.continue_from)
        return Start(resumed_step(root, trainer.resume_from_checkpoint) or continued, continued)
    except (OSError, RuntimeError, ValueError):  # unreadable or invalid paths are reported by the checks
        return AFRESH
