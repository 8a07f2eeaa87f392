"""Update rules and schedules."""

from neobert.optim.adamw import build_optimizer, decay_groups
from neobert.optim.schedule import build_scheduler, fast_forward

__all__ = ["build_optimizer", "build_scheduler", "decay_groups", "fast_forward"]
