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


DECAYS: Mapping[str, Callable[[float], float]] = {"cosine": cosine, "linear": linear}
DECAY_NAMES = tuple(DECAYS)
