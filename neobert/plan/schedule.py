"""The learning rate as a pure function of the step: warm-up, plateau, decay, floor.

Rules judge it, the plan prints it, and the trainer's scheduler calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

from neobert.config.decays import DECAYS
from neobert.config.schema import SchedulerConfig

WARMUP_START = 1e-4


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule in optimizer steps, with percentages and defaults resolved.

    Attributes:
        warmup_steps: step at which the peak is reached.
        decay_start: step at which the plateau ends.
        decay_end: step at which the floor is reached.
        floor: share of the peak from `decay_end` on.
    """

    name: str
    warmup_steps: int
    decay_start: int
    decay_end: int
    floor: float


def schedule_of(scheduler: SchedulerConfig, max_steps: int) -> Schedule:
    """Resolve percentages and defaults; what does not fit together is left as it is, for a rule to name."""
    total = scheduler.total_steps or max_steps
    warmup = _steps(scheduler.warmup_percent, scheduler.warmup_steps, total)
    decay = _steps(scheduler.decay_percent, scheduler.decay_steps, total)
    return Schedule(
        name=scheduler.name,
        warmup_steps=warmup or 0,
        decay_start=warmup or 0 if decay is None else total - decay,
        decay_end=total,
        floor=scheduler.final_lr_ratio,
    )


def learning_rate_at(step: int, peak: float, schedule: Schedule) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0."""
    return peak * multiplier_at(step, schedule)


def multiplier_at(step: int, schedule: Schedule) -> float:
    """Return the share of the peak at `step`: linear from 1e-4 to 1, then 1, the decay, the floor."""
    if step < schedule.warmup_steps:
        return WARMUP_START + (1 - WARMUP_START) * step / schedule.warmup_steps
    if step < schedule.decay_start:
        return 1.0
    if step >= schedule.decay_end:
        return schedule.floor
    progress = (step - schedule.decay_start) / (schedule.decay_end - schedule.decay_start)
    return schedule.floor + (1 - schedule.floor) * DECAYS[schedule.name](progress)


def _steps(percent: float | None, steps: int | None, total: int) -> int | None:
    return steps if percent is None else round(total * percent / 100)
