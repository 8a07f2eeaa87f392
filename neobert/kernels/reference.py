"""Reference implementations of the kernels in plain PyTorch, computed in the dtype of the inputs.

T tokens, D hidden size, H heads, E head size, I intermediate size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from neobert.kernels.fused_block import BlockWeights


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm to the last dimension of x, with statistics in float32, or float64 for float64 inputs."""
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Apply rotary embeddings for positions [T] to interleaved pairs of x [T, H, E]."""
    size = x.shape[-1]
    exponent = torch.arange(0, size, 2, device=x.device, dtype=torch.float64) / size
    angle = (positions.double()[:, None] * theta**-exponent)[:, None, :]
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = angle.cos().to(work), angle.sin().to(work)
    even, odd = x[..., ::2].to(work), x[..., 1::2].to(work)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def attention(qkv: Tensor, positions: Tensor, cu_seqlens: Tensor, num_heads: int, theta: float) -> Tensor:
    """Rotate qkv [T, 3 * H * E] and attend within segments, one after another; return [T, H * E]."""
    total = qkv.shape[0]
    q, k, v = qkv.view(total, num_heads, 3, -1).unbind(2)
    q, k = rotate(q, positions, theta), rotate(k, positions, theta)
    bounds = [*cu_seqlens.tolist(), total]
    parts = [_attend_all(q[a:b], k[a:b], v[a:b]) for a, b in pairwise(bounds) if b > a]
    return torch.cat(parts).reshape(total, -1)


def _attend_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Not `plain_attention`: in fp64, the scores of a document of 8,192 tokens would take 6 GiB a block.
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up [T, I] of gate_up [T, 2I], which has gate in the first half of its columns."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def block(
    x: Tensor,
    weights: BlockWeights,
    positions: Tensor,
    cu_seqlens: Tensor,
    num_heads: int,
    theta: float,
    eps: float,
) -> Tensor:
    """Apply one pre-norm encoder block to x [T, D]."""
    attended = attention(
        rms_norm(x, weights.attention_norm, eps) @ weights.qkv.t(), positions, cu_seqlens, num_heads, theta
    )
    x = x + attended @ weights.wo.t()
    return x + swiglu(rms_norm(x, weights.ffn_norm, eps) @ weights.w12.t()) @ weights.w3.t()
