"""Numbers that two passes can be compared by, and that JSON can hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNBOUNDED = 1e30
"""What stands for infinity and for no number at all: JSON has neither, and both are larger than any limit."""


def finite(value: float) -> float:
    """Return the number, or the largest that a report holds."""
    return float(value) if math.isfinite(value) and value < UNBOUNDED else UNBOUNDED


def largest(tensor: Tensor) -> float:
    """Return the largest magnitude in a tensor; of an empty one, 0."""
    return finite(tensor.abs().max().item()) if tensor.numel() else 0.0


def difference(after: Tensor, before: Tensor) -> Tensor:
    """Return what moved; one that is no number on both sides has not moved, on one side it has."""
    return torch.where((after == before) | (after.isnan() & before.isnan()), 0.0, after.float() - before)
