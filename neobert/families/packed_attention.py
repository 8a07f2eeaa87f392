"""Attention over a flat row of documents by a kernel of the table, for any model's attention. Imports torch.

NeoBERT's own modules call the kernels in `neobert.model.attention`, whose file travels in checkpoints and
knows no windows and no causal attention.

T packed tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.families.attention import AttentionSpec
from neobert.families.packed_flex import flex_attention
from neobert.kernel_table import ATTENTION, FLASH
from neobert.kernels.plain_attention import attended_mask, plain_attention
from neobert.model.attention import Attend, record_kernel, segment_lengths
from neobert.model.attention import packed_attention as packed_in_both_directions


def packed_attention(
    kernel: str,
    cu_seqlens: Tensor,
    max_seqlen: int,
    num_tokens: int,
    spec: AttentionSpec,
    dropout: float = 0.0,
) -> Attend:
    """Return the `attend` of one block within documents: q [T, N, H], k and v [T, K, H] to [T, N, H].

    Args:
        kernel: name of an attention kernel that has the features of the spec (`Kernel.obstacle`).
        cu_seqlens: bounds of the documents, int32 [documents + 1], from 0 to T; empty documents included.
        max_seqlen: upper bound of their lengths.
        spec: attention of the block (`AttentionSpec.for_layer`).
        dropout: dropout of attention probabilities; only `sdpa` has it.

    Raises `ValueError` for `sdpa` if the bounds do not cover the tokens.
    """
    assert kernel == "sdpa" or not dropout, f"{kernel} has no dropout"
    if not spec.features and not dropout:
        return packed_in_both_directions(kernel, cu_seqlens, max_seqlen, num_tokens)
    if kernel == "sdpa":
        return _attend_by_document(segment_lengths(cu_seqlens, max_seqlen, num_tokens), spec, dropout)
    if kernel == "flex":
        return flex_attention(cu_seqlens, num_tokens, spec)
    assert ATTENTION[kernel].is_varlen, f"{kernel} takes no options"
    attend = packed_in_both_directions(
        kernel, cu_seqlens, max_seqlen, num_tokens, **varlen_options(kernel, spec)
    )
    # torch 2.11's own kernel has no grouped heads.
    return _with_repeated_heads(attend, spec) if kernel == "torch_varlen" else attend


def _with_repeated_heads(attend: Attend, spec: AttentionSpec) -> Attend:
    def attend_with_repeated_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(spec.heads // spec.kv_heads, dim=1) for x in (k, v))
        return attend(q, k, v)

    return attend_with_repeated_heads if spec.heads != spec.kv_heads else attend


def _attend_by_document(lengths: list[int], spec: AttentionSpec, dropout: float) -> Attend:
    """Return an `attend` that calls SDPA once per document."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        record_kernel("sdpa")
        parts = zip(*(x.transpose(0, 1)[None].split(lengths, dim=2) for x in (q, k, v)), strict=True)
        outs = [one_document(*part) for part in parts]
        return torch.cat(outs, dim=2)[0].transpose(0, 1)

    def one_document(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if spec.softcap is not None:
            assert not dropout, "no dropout of capped scores"
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return plain_attention(q, k, v, spec).transpose(1, 2)
        mask = None if spec.reach == (None, None) else attended_mask(q.shape[2], spec, q.device)
        is_grouped = spec.heads != spec.kv_heads
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=spec.scale, enable_gqa=is_grouped
        )

    return attend


def varlen_options(name: str, spec: AttentionSpec) -> dict[str, Any]:
    """Return the keyword arguments of a varlen kernel: of torch's own, or of FlashAttention 2 and 3."""
    window = tuple(-1 if most is None else most for most in spec.reach)
    if ATTENTION[name].group != FLASH:
        return {"window_size": window, "scale": spec.scale}
    options = {"causal": spec.is_causal, "window_size": window, "softmax_scale": spec.scale}
    return options | ({} if spec.softcap is None else {"softcap": spec.softcap})
