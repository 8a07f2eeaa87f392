"""Splitting of fused weights into the matrices that Muon orthogonalizes.

Muon equalizes the singular values of a matrix. If matrices that are stacked for one fused product were
orthogonalized together, their directions would mix: a large gradient of V would shrink the update of Q.
Therefore Q, K and V are orthogonalized separately, optionally per head, and so are gate and up.

Shapes: D columns, N heads, H channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neobert.families.linear import GATE_UP, HEADS, PROJECTION, QKV, QKV_BY_HEAD, STACKED_QKV

BY_HEAD = {QKV: QKV_BY_HEAD, STACKED_QKV: QKV_BY_HEAD, PROJECTION: HEADS}
"""Layouts with which each head is orthogonalized separately."""


def split_rows(weight: Tensor, layout: str, num_heads: int) -> Tensor:
    """Split fused weights [..., rows, D] into [..., matrices, rows per matrix, D].

    The result is [..., 1, rows, D] for "whole" and "projection", [..., 2, rows / 2, D] for "gate_up",
    [..., N, H, D] for "heads", [..., 3, N H, D] for "qkv" and "stacked_qkv", and [..., 3 N, H, D] for
    "qkv_by_head", which is either of these two. See `Layout` for the order of rows.
    """
    if layout == QKV:
        return weight.unflatten(-2, (num_heads, 3, -1)).transpose(-4, -3).flatten(-3, -2)
    parts = {GATE_UP: 2, STACKED_QKV: 3, HEADS: num_heads, QKV_BY_HEAD: 3 * num_heads}
    num_parts = parts.get(layout, 1)
    return weight.unflatten(-2, (num_parts, -1))


def join_rows(parts: Tensor, layout: str, num_heads: int) -> Tensor:
    """Join matrices to the fused weight [..., rows, D]: the inverse of `split_rows`."""
    if layout == QKV:
        return parts.unflatten(-2, (num_heads, -1)).transpose(-4, -3).flatten(-4, -2)
    return parts.flatten(-3, -2)


def expand_head_factors(queries: Tensor, keys: Tensor, head_dim: int) -> Tensor:
    """Expand factors of queries and keys per head [N] to all rows of qkv [3 N H, 1]; rows of V get 1."""
    factors = torch.stack((queries, keys, torch.ones_like(keys)), dim=1)
    return factors.flatten().repeat_interleave(head_dim)[:, None]
