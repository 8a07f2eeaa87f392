"""Attention by its formula, in the dtype of its inputs: the reference of the probes and tests.

Written to be read, not to be fast: every score of a document is in memory.

T tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neobert.families.attention import AttentionSpec


def plain_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Attend within one document: q [..., T, N, H] and k, v [..., T, K, H] to the context [..., T, N, H].

    `spec` describes the block (`AttentionSpec.for_layer`): its window applies if there is one.
    """
    per_group = q.shape[-2] // k.shape[-2]
    k, v = (x.repeat_interleave(per_group, dim=-2) for x in (k, v))
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (spec.scale or q.shape[-1] ** -0.5)
    # In half precision a softmax over many keys has too few bits: kernels keep fp32 too.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if spec.softcap is not None:
        scores = spec.softcap * (scores / spec.softcap).tanh()
    scores = scores.masked_fill(~attended_mask(q.shape[-2], spec, q.device), -torch.inf)
    return (scores.softmax(-1).to(v.dtype) @ v).transpose(-3, -2)


def attended_mask(length: int, spec: AttentionSpec, device: torch.device | None = None) -> Tensor:
    """Return which key (column) each query (row) attends to in a document of `length` tokens: bool [T, T].

    `device` None: the CPU.
    """
    token = torch.arange(length, device=device)
    distance = token[:, None] - token  # of a key before its query; negative after it
    earlier, later = spec.reach
    is_near = torch.ones_like(distance, dtype=torch.bool)
    if earlier is not None:
        is_near &= distance <= earlier
    if later is not None:
        is_near &= -distance <= later
    return is_near
