"""Optimizers, learning-rate schedulers and QK-clip."""

from neobert.optim.adamw import decay_groups
from neobert.optim.build import build_optimizer, build_scheduler, clip_gradients, fast_forward, step_unless
from neobert.optim.qk_clip import build_qk_clip

__all__ = [
    "build_optimizer",
    "build_qk_clip",
    "build_scheduler",
    "clip_gradients",
    "decay_groups",
    "fast_forward",
    "step_unless",
]
