"""Optimizer steps of a run: `trainer.max_steps`, or fewer if `trainer.max_epochs` ends it earlier."""

from __future__ import annotations

from neobert.config.schedules import microbatches_before, steps_for_microbatches
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.plan.derived import Derived, EpochSize
from neobert.plan.size import num_processes


def plan_steps(config: RunConfig, epoch: EpochSize | None) -> Derived[int]:
    """Derive the number of optimizer steps: `max_steps`, or the steps of `max_epochs` if known and fewer."""
    trainer = config.trainer
    if trainer.max_epochs is None:
        return Derived(trainer.max_steps, "trainer.max_steps")
    if epoch is None:
        reason = "trainer.max_steps; trainer.max_epochs may end the run earlier, and the size of an epoch is "
        return Derived(trainer.max_steps, f"{reason}not known before the data is prepared")
    world = num_processes(config)
    steps = epoch_steps(trainer, epoch.num_microbatches, world)
    per_step = f"{trainer.gradient_accumulation_steps * world:,} microbatches per step"
    reason = f"{trainer.max_epochs:g} epochs x {epoch.num_microbatches:,} microbatches / {per_step}"
    if steps > trainer.max_steps:
        return Derived(
            trainer.max_steps,
            f"trainer.max_steps, fewer than {steps:,} steps of trainer.max_epochs: {reason}; {epoch.source}",
        )
    return Derived(steps, f"{reason}; {epoch.source}")


def plan_epochs(config: RunConfig, max_steps: int, epoch: EpochSize | None) -> Derived[float | None]:
    """Derive the number of passes over the training text; the value is None if its size is unknown."""
    if epoch is None:
        return Derived(None, "the size of the text is not known before the data is prepared")
    read = microbatches_before(max_steps, config.trainer) * num_processes(config)
    return Derived(
        read / epoch.num_microbatches,
        f"{read:,} microbatches / {epoch.num_microbatches:,} in an epoch; {epoch.source}",
    )


def epoch_steps(trainer: TrainerConfig, num_microbatches: int, world_size: int) -> int:
    """Convert `trainer.max_epochs` to optimizer steps, given the microbatches of one epoch; at least 1."""
    assert trainer.max_epochs is not None
    return max(1, steps_for_microbatches(trainer.max_epochs * num_microbatches / world_size, trainer))
