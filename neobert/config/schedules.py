"""Schedules of learning rate and batch size as pure functions of the step, and the masking rates.

A resume therefore needs no scheduler state. The plan, the rules and the trainer call the same functions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple, TypeVar

from neobert.config.decays import DECAYS
from neobert.config.nodes import LARGEST_INT
from neobert.config.schema import DataCollatorConfig, SchedulerConfig, TrainerConfig

WARMUP_START = 1e-4


class Schedule(NamedTuple):
    """A schedule in optimizer steps, with percentages and defaults resolved.

    Attributes:
        warmup_steps: step at which the peak is reached.
        decay_start: step at which the plateau ends.
        decay_end: step at which the floor is reached.
        floor: minimum learning rate as a fraction of the peak, from `decay_end` on.
    """

    name: str
    warmup_steps: int
    decay_start: int
    decay_end: int
    floor: float


def build_schedule(scheduler: SchedulerConfig, max_steps: int) -> Schedule:
    """Convert the section `scheduler` to steps, with percentages and defaults resolved.

    Inconsistent values are kept; rules report them.
    """
    total = scheduler.total_steps or max_steps
    warmup = resolve_steps(scheduler.warmup_percent, scheduler.warmup_steps, total)
    decay = resolve_steps(scheduler.decay_percent, scheduler.decay_steps, total)
    return Schedule(
        name=scheduler.name,
        warmup_steps=warmup,
        decay_start=warmup if decay is None else total - decay,
        decay_end=total,
        floor=scheduler.final_lr_ratio,
    )


def learning_rate_at(step: int, peak: float, schedule: Schedule) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0."""
    return peak * multiplier_at(step, schedule)


def multiplier_at(step: int, schedule: Schedule) -> float:
    """Return the fraction of the peak learning rate at `step`: warm-up from 1e-4, plateau, decay, minimum."""
    if step < schedule.warmup_steps:
        return WARMUP_START + (1 - WARMUP_START) * step / schedule.warmup_steps
    if step < schedule.decay_start:
        return 1.0
    if step >= schedule.decay_end:
        return schedule.floor
    progress = (step - schedule.decay_start) / (schedule.decay_end - schedule.decay_start)
    return schedule.floor + (1 - schedule.floor) * DECAYS[schedule.name](progress)


N = TypeVar("N", int, int | None)


def resolve_steps(percent: float | None, steps: N, total: int) -> int | N:
    """Convert a percentage of `total` to steps; return `steps` if the percentage is None."""
    return steps if percent is None else round(total * percent / 100)


def microbatches_at(step: int, trainer: TrainerConfig) -> int:
    """Return the number of microbatches of a rank in a step.

    During the batch-size warm-up it doubles from 1 to gradient_accumulation_steps.
    """
    full, warmup = trainer.gradient_accumulation_steps, trainer.batch_size_warmup_steps
    if step >= warmup:
        return full
    return min(full, 1 << step * _doublings_to_full_batch(trainer) // warmup)


def microbatches_before(step: int, trainer: TrainerConfig) -> int:
    """Return the total number of microbatches of a rank before the step `step`."""
    full, warmup, doublings = (
        trainer.gradient_accumulation_steps,
        trainer.batch_size_warmup_steps,
        _doublings_to_full_batch(trainer),
    )
    # Step s has 2^k microbatches where k = s doublings // warmup: from these steps on.
    first_steps = [-(-k * warmup // max(1, doublings)) for k in range(doublings + 1)]
    in_warmup = sum(
        (1 << k) * max(0, min(step, first_steps[k + 1]) - first_steps[k]) for k in range(doublings)
    )
    return in_warmup + full * max(0, step - first_steps[-1])


def steps_for_microbatches(microbatches: float, trainer: TrainerConfig) -> int:
    """Return the fewest steps in which a rank processes at least this many microbatches."""
    most = range(math.ceil(min(microbatches, LARGEST_INT - 1)) + 1)
    return bisect_left(most, microbatches, key=lambda step: microbatches_before(step, trainer))


def _doublings_to_full_batch(trainer: TrainerConfig) -> int:
    """Return the number of doublings from 1 to gradient_accumulation_steps; 0 without batch-size warm-up."""
    if trainer.batch_size_warmup_steps == 0:
        return 0
    return (trainer.gradient_accumulation_steps - 1).bit_length()


class MaskingRates(NamedTuple):
    """Fractions of masked tokens in training and in evaluations."""

    training: float
    evaluation: float


def masking_rates(collator: DataCollatorConfig) -> MaskingRates:
    """Return the masking rates of a run; evaluations default to the rate of training."""
    training, evaluation = collator.mlm_probability, collator.mlm_probability_eval
    return MaskingRates(training, training if evaluation is None else evaluation)
