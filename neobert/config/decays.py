"""The table of decays: values of `scheduler.name`, as functions of the share of the decay that is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


def cosine(progress: float) -> float:
    """Return the share of the way from floor to peak that is left: half a cosine wave."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """Return the share of the way from floor to peak that is left: a straight line."""
    return 1 - progress


def sqrt(progress: float) -> float:
    """Return the share of the way from floor to peak that is left: slow at first, steep at the end."""
    return math.sqrt(1 - progress)


def one_minus_sqrt(progress: float) -> float:
    """Return the share of the way from floor to peak that is left: steep at first (arXiv:2405.18392)."""
    return 1 - math.sqrt(progress)


DECAYS: Mapping[str, Callable[[float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "sqrt": sqrt,
    "1-sqrt": one_minus_sqrt,
}
DECAY_NAMES = tuple(DECAYS)
