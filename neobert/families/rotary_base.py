"""Base of rotary positions for rows longer than those that weights were trained on. Imports no torch."""

from __future__ import annotations

import math

BOUND, EXPONENT = 0.0424, 1.628
"""Minimum base for rows of L tokens: 0.0424 * L ** 1.628, fit to the bounds of arXiv:2405.14591, figure 1."""


def extended_base(trained: float, positions: int, length: int, head_size: int) -> float:
    """Return the base for rows of `length` tokens, `trained` if they are no longer than `positions`.

    The larger of `min_base` and NTK-aware scaling (arXiv:2309.00071), rounded up to two digits. That scaling
    multiplies the base by s ** (d / (d - 2)), for head size d and rows s times as long: over such a row, the
    slowest pair of channels turns as far as in training, and the fastest pair is unchanged.
    """
    if length <= positions or head_size <= 2:
        return trained
    scaled = trained * (length / positions) ** (head_size / (head_size - 2))
    return _round_up(max(scaled, min_base(length)))


def min_base(length: int) -> float:
    """Return the least base at which a similar token `length` away still gets more attention than others."""
    return float(BOUND * length**EXPONENT)


def _round_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(math.ceil(value / unit) * unit)
