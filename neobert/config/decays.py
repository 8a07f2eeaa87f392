"""Decay functions by name, the values of `scheduler.name`.

Each maps the progress of the decay, from 0 to 1, to a factor between 1 (peak learning rate) and 0 (minimum).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


def cosine(progress: float) -> float:
    """Return (1 + cos(pi * progress)) / 2."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """Return 1 - progress."""
    return 1 - progress


def sqrt(progress: float) -> float:
    """Return sqrt(1 - progress): slow at first, steep at the end."""
    return math.sqrt(1 - progress)


def one_minus_sqrt(progress: float) -> float:
    """Return 1 - sqrt(progress): steep at first, slow at the end (arXiv:2405.18392)."""
    return 1 - math.sqrt(progress)


DECAYS: Mapping[str, Callable[[float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "sqrt": sqrt,
    "1-sqrt": one_minus_sqrt,
}
DECAY_NAMES = tuple(DECAYS)
