"""torch's flex_attention over packed documents, for any model's attention. Imports torch.

T packed tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from neobert.families.attention import AttentionSpec
from neobert.model import flex
from neobert.model.attention import Attend, record_kernel
from neobert.model.flex import TILE

ALL = -1
"""Reach of a token that attends to its whole document."""


def flex_attention(cu_seqlens: Tensor, num_tokens: int, spec: AttentionSpec) -> Attend:
    """Return a function that computes one block's attention within documents.

    It takes q [T, N, H], k and v [T, K, H] and returns [T, N, H].
    """
    mask, softcap = _build_mask(cu_seqlens, num_tokens, spec), spec.softcap
    cap_score = None

    if softcap is not None:

        def cap_score(score: Tensor, *_: Tensor) -> Tensor:
            return softcap * (score / softcap).tanh()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        record_kernel("flex")
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        context: Tensor = flex._flex_program()(
            q,
            k,
            v,
            score_mod=cap_score,
            block_mask=mask,
            scale=spec.scale,
            enable_gqa=spec.heads != spec.kv_heads,
        )
        return context[0].transpose(0, 1)

    return attend


def _build_mask(cu_seqlens: Tensor, num_tokens: int, spec: AttentionSpec) -> BlockMask:
    earlier, later = (ALL if most is None else most for most in spec.reach)
    segment, counts, indices = reached_tiles(cu_seqlens, num_tokens, earlier, later)

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        is_near: Tensor = segment[query] == segment[key]
        if earlier != ALL:
            is_near = is_near & (query - key <= earlier)
        if later != ALL:
            is_near = is_near & (key - query <= later)
        return is_near

    return BlockMask.from_kv_blocks(
        counts[None, None],
        indices[None, None],
        BLOCK_SIZE=TILE,
        mask_mod=attends,
        seq_lengths=(num_tokens, num_tokens),
    )


# An operator for the reason that `document_tiles` is one.
@torch.library.custom_op("neobert::reached_tiles", mutates_args=())
def reached_tiles(
    cu_seqlens: Tensor, num_tokens: int, earlier: int, later: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `document_tiles` without the tiles that no query of a tile reaches."""
    segment, counts, indices = flex.document_tiles(cu_seqlens, num_tokens)
    tiles = torch.arange(len(counts), device=counts.device)
    first = indices[:, 0].long()
    last = first + counts - 1
    if earlier != ALL:
        first = torch.maximum(first, (tiles * TILE - earlier).clamp(min=0) // TILE)
    if later != ALL:
        last = torch.minimum(last, (tiles * TILE + TILE - 1 + later) // TILE)
    indices = ((first[:, None] + tiles) % len(counts)).to(torch.int32)
    return segment, (last - first + 1).to(torch.int32), indices


@reached_tiles.register_fake
def _reached_tiles_fake(
    cu_seqlens: Tensor, num_tokens: int, _earlier: int, _later: int
) -> tuple[Tensor, Tensor, Tensor]:
    return flex.document_tiles_fake(cu_seqlens, num_tokens)
