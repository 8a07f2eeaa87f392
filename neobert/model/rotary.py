"""Rotary positions on interleaved pairs of channels (arXiv:2104.09864). Copied into every checkpoint folder.

Shapes: ... is [T] packed or [B, S] padded, N heads, H channels of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosine and sine of every position's angles, fp32 [..., 1, H/2]: a row a token, for all heads."""

    cos: Tensor
    sin: Tensor


def rotation_at(positions: Tensor, head_dim: int, theta: float) -> Rotation:
    """Build the rotation of these positions [...].

    It is made once a forward and kept by nobody: no buffer that a meta-device start could leave unfilled,
    and no longest position. Positions are exact in fp32 up to 2**24.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.to(torch.float32)[..., None, None] * theta**-exponents
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the channel pairs (2k, 2k+1) of x [..., N, H] in fp32 and cast back."""
    even, odd = x.to(torch.float32).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)
