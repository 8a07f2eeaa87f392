"""Comparison of two passes in numbers that JSON can hold."""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNBOUNDED = 1e30
"""Stands for infinity and NaN, which JSON lacks; larger than any limit."""


def finite(value: float) -> float:
    """Return the number, or `UNBOUNDED` for infinity and NaN."""
    return float(value) if math.isfinite(value) and value < UNBOUNDED else UNBOUNDED


def largest(tensor: Tensor) -> float:
    """Return the largest magnitude in a tensor; of an empty one, 0."""
    return finite(tensor.abs().max().item()) if tensor.numel() else 0.0


def difference(after: Tensor, before: Tensor) -> Tensor:
    """Return the differences; NaN on both sides counts as equal, on one side as different."""
    return torch.where((after == before) | (after.isnan() & before.isnan()), 0.0, after.float() - before)
