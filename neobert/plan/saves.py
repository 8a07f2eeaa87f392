"""Plan of checkpoints: save interval, size, and the work lost on a crash."""

from __future__ import annotations

import math

from neobert.config.schema import RunConfig, TrainerConfig
from neobert.families.shape import ModelShape
from neobert.plan.derived import Derived, Values, bytes_to_mib
from neobert.plan.memory import count_optimizer_values
from neobert.plan.sharding import kept_share
from neobert.plurals import counted
from neobert.units import SECONDS_PER_MINUTE

FOLDER_MIB = 4.0
TREE_MARGIN = 1.2
MIN_KEPT = 2  # also with a lower trainer.save_total_limit: if one is damaged, another one is left
STARTS_KEPT = 1  # the checkpoint that the session resumed from
SUPERSEDED_KEPT = 1  # a later checkpoint, set aside by a resume from an earlier step


def plan_saves(config: RunConfig, shape: ModelShape, step_time_s: Derived[float]) -> Values:
    """Derive the save interval, the minutes of work lost on a crash, and the disk space of checkpoints."""
    trainer = config.trainer
    interval = save_interval(trainer)
    num_saves = Derived(
        math.ceil(trainer.max_steps / interval.value),
        f"{trainer.max_steps:,} steps, one save every {interval.value:,}",
    )
    moments = count_optimizer_values(config.optimizer, shape.trained_parameters)
    size = bytes_to_mib(shape.state_bytes(moments.value)) + FOLDER_MIB
    kept = max_kept_checkpoints(trainer, num_saves.value)
    parts_mib = bytes_to_mib(shape.state_bytes(0)) if kept_share(config) < 1 else 0.0
    parts = f" + {parts_mib:.0f} MiB of weights in parts" if parts_mib else ""
    return {
        "save_interval_steps": interval,
        "num_saves": num_saves,
        "first_save_step": Derived(interval.value, interval.reason),
        "minutes_at_risk": Derived(
            interval.value * step_time_s.value / SECONDS_PER_MINUTE,
            f"{counted(interval.value, 'step')} between saves x {step_time_s.value:.3g} s "
            f"({step_time_s.reason})",
        ),
        "checkpoint_mib": Derived(
            size,
            f"{shape.parameters.total:,} fp32 weights in the exported folder; next to it {moments.reason}",
        ),
        "checkpoint_tree_mib": Derived(
            ((kept + 1) * size + parts_mib) * TREE_MARGIN,
            f"(({kept} kept + 1 being written) x {size:.0f} MiB{parts}) x {TREE_MARGIN}",
        ),
    }


def max_kept_checkpoints(trainer: TrainerConfig, num_saves: int) -> int:
    """Return the maximum number of checkpoints on disk at once, without the one being written.

    Includes checkpoints that `save_total_limit` does not count: the one that a session resumed from, the
    best, multiples of `save_keep_every`, and a superseded one.
    """
    if not trainer.save_total_limit:
        return num_saves + SUPERSEDED_KEPT
    multiples = trainer.max_steps // trainer.save_keep_every if trainer.save_keep_every else 0
    best = int(trainer.metric_for_best_model is not None)
    besides = STARTS_KEPT + best + min(multiples, num_saves) + SUPERSEDED_KEPT
    return max(trainer.save_total_limit, MIN_KEPT) + besides


def save_interval(trainer: TrainerConfig) -> Derived[int]:
    """Derive the number of steps between saves; `max_steps` if only the final checkpoint is saved."""
    if trainer.save_steps == 0:
        return Derived(trainer.max_steps, "trainer.save_steps is 0: only the last step is saved")
    if trainer.save_steps > trainer.max_steps:
        return Derived(
            trainer.max_steps, "trainer.save_steps exceeds trainer.max_steps: only the last step is saved"
        )
    return Derived(trainer.save_steps, f"trainer.save_steps {trainer.save_steps:,}")
