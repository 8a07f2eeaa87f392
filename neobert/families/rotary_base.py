"""Base of rotary positions for rows longer than those that weights were trained on. Imports no torch."""

from __future__ import annotations

import math

BOUND, EXPONENT = 0.0424, 1.628
"""Least base for rows of L tokens: 0.0424 L^1.628, fitted to the bounds of arXiv:2405.14591, figure 1."""


def extended_base(trained: float, positions: int, length: int, head_size: int) -> float:
    """Return the base for rows of `length` tokens, `trained` if they are no longer than `positions`.

    The larger of two values, rounded up to two digits. NTK-aware scaling (arXiv:2309.00071): with a base
    s^(d / (d - 2)) times as large, the slowest pair of a head of size d turns no further in s times the
    positions than it did in training, and the fastest as before. And the least base of such rows, above.
    """
    if length <= positions or head_size <= 2:
        return trained
    scaled = trained * (length / positions) ** (head_size / (head_size - 2))
    return _round_up(max(scaled, min_base(length)))


def min_base(length: int) -> float:
    """Return the least base with which tokens `length` apart attend to similar tokens more than to others."""
    return float(BOUND * length**EXPONENT)


def _round_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(math.ceil(value / unit) * unit)
