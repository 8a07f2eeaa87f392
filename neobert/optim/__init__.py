"""Optimizers, learning-rate schedulers, QK-clip and weight averaging."""

from neobert.optim.adamw import decay_groups
from neobert.optim.build import build_optimizer, build_scheduler, fast_forward, step_unless
from neobert.optim.qk_clip import build_qk_clip
from neobert.optim.weight_average import WeightAverage

__all__ = [
    "WeightAverage",
    "build_optimizer",
    "build_qk_clip",
    "build_scheduler",
    "decay_groups",
    "fast_forward",
    "step_unless",
]
