"""Splitting of fused weights into the matrices that Muon orthogonalizes.

Muon equalizes the singular values of a matrix. Orthogonalizing matrices that are stacked only for one fused
product would mix their directions: a large gradient of V would shrink the update of Q. Q, K and V, and gate
and up, are therefore orthogonalized separately. Each head reads its own rows of Q, K and V, so these may also
be orthogonalized per head.

Shapes: D columns, N heads, H channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

WHOLE, QKV, QKV_BY_HEAD, GATE_UP = "whole", "qkv", "qkv_by_head", "gate_up"


def split_rows(weight: Tensor, layout: str, num_heads: int) -> Tensor:
    """Split weights [..., rows, D] into their matrices.

    Gives [..., 1, rows, D], for gate and up [..., 2, rows / 2, D], for Q, K and V [..., 3, N H, D]. The rows
    of qkv are grouped by head, Q, K and V of head 0 and then of head 1, not Q, K and V of all. Split by head
    they keep that order, [..., 3 N, H, D].
    """
    if layout == QKV:
        return weight.unflatten(-2, (num_heads, 3, -1)).transpose(-4, -3).flatten(-3, -2)
    num_parts = {GATE_UP: 2, QKV_BY_HEAD: 3 * num_heads}.get(layout, 1)
    return weight.unflatten(-2, (num_parts, -1))


def join_rows(parts: Tensor, layout: str, num_heads: int) -> Tensor:
    """Invert `split_rows`."""
    if layout == QKV:
        return parts.unflatten(-2, (num_heads, -1)).transpose(-4, -3).flatten(-4, -2)
    return parts.flatten(-3, -2)


def head_rows(queries: Tensor, keys: Tensor, head_dim: int) -> Tensor:
    """Expand factors per head [N] to the rows of qkv [3 N H, 1]; rows of V get 1."""
    factors = torch.stack((queries, keys, torch.ones_like(keys)), dim=1)
    return factors.flatten().repeat_interleave(head_dim)[:, None]
