"""Native sparse attention in plain torch, one document after another: what a CPU trains on. Imports torch.

Scores of all pairs of a document are in memory at once.

T packed tokens, S tokens of a document, C its blocks, N query heads, K heads of keys and values, G = N / K,
H channels of a head, B selected blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from neobert.families.attention import SelectedBlocks
from neobert.model.attention import segment_lengths

NO_BLOCK = -1
"""Index that fills the selection of a token with fewer than `counts` blocks."""
HIDDEN = -torch.inf
"""Score of a key that a query does not see: a finite one would show the first tokens the mean of all keys."""


class AttentionResult(NamedTuple):
    """Result of the attention of one block of the model.

    Attributes:
        context: outputs of the three branches, each times its gate, [T, N, H].
        blocks: selected blocks of each token and head of keys, counted in the token's document, [T, K, B];
            `NO_BLOCK` for none.
        lse: logsumexp of the scores of the compressed branch [T, N]; undefined without a complete block.
    """

    context: Tensor
    blocks: Tensor
    lse: Tensor


Attend = Callable[[Tensor, Tensor, Tensor, Tensor], AttentionResult]
"""Attention within documents: q [T, N, H], k and v [T, K, H], gates [T, N, 3] to `AttentionResult`."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    spec: SelectedBlocks,
) -> AttentionResult:
    """Attend within documents: q [T, N, H], k and v [T, K, H], gates [T, N, 3], in fp32.

    Raises `ValueError` if the bounds do not cover T tokens, or a document exceeds `max_seqlen`.
    """
    lengths = segment_lengths(cu_seqlens, max_seqlen, len(q))
    with torch.autocast(q.device.type, enabled=False):
        parts = (each.split(lengths) for each in (q, k, v, gates))
        found = [*map(partial(attend_in_document, spec=spec), *parts)]
    return AttentionResult(*map(torch.cat, zip(*found, strict=True)))


def attend_in_document(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, spec: SelectedBlocks
) -> AttentionResult:
    """Attend in one document: q [S, N, H], k and v [S, K, H], gates [S, N, 3]."""
    dtype, length = q.dtype, len(q)
    means = [block_means(each, spec.size).float() for each in (k, v)]
    grouped = q.float().unflatten(1, (k.shape[1], -1)) * q.shape[-1] ** -0.5
    k, v = k.float(), v.float()
    positions = torch.arange(length, device=q.device)

    to_blocks = torch.einsum("skgh,ckh->kgsc", grouped, means[0])
    to_blocks = to_blocks.masked_fill(~complete_blocks(positions, len(means[0]), spec.size), HIDDEN)
    lse = to_blocks.logsumexp(-1)
    weights = to_blocks.softmax(-1).nan_to_num(0.0)  # the first tokens see no complete block
    compressed = torch.einsum("kgsc,ckh->skgh", weights, means[1])
    blocks = select_blocks(weights.detach().mean(1), spec)

    scores = torch.einsum("skgh,tkh->kgst", grouped, k)
    is_past = positions[:, None] >= positions
    is_near = is_past & (positions[:, None] - positions < spec.window)
    selected = _masked_attention(scores, (is_selected(blocks, length, spec.size) & is_past)[:, None], v)
    sliding = _masked_attention(scores, is_near, v)
    context = combine(
        (each.flatten(1, 2) for each in (compressed, selected, sliding)), gates.float().unbind(-1)
    )
    return AttentionResult(context.to(dtype), blocks.transpose(0, 1), lse.flatten(0, 1).t())


def block_means(x: Tensor, size: int) -> Tensor:
    """Return the mean of each block of `size` tokens of x [S, K, H], [C, K, H]; the last may be shorter."""
    return torch.stack([part.float().mean(0) for part in x.split(size)]).to(x.dtype)


def complete_blocks(positions: Tensor, num_blocks: int, size: int) -> Tensor:
    """Return which blocks end at or before each token, bool [S, C]: a mean contains all its tokens."""
    return torch.arange(num_blocks, device=positions.device) < ((positions + 1) // size)[:, None]


def select_blocks(weights: Tensor, spec: SelectedBlocks) -> Tensor:
    """Return the blocks of the largest weights [K, S, C], int64 [K, S, B], the earliest of equal ones.

    The first block, a token's own, and the one before are always selected.
    """
    num_blocks = weights.shape[-1]
    block = torch.arange(num_blocks, device=weights.device)
    own = (torch.arange(weights.shape[1], device=weights.device) // spec.size)[:, None]
    weights = weights.masked_fill(is_forced(block, own), 2.0).masked_fill(block > own, -1.0)
    values, order = weights.sort(dim=-1, descending=True, stable=True)
    chosen = order.masked_fill(values < 0, NO_BLOCK)[..., : spec.counts]
    return torch.nn.functional.pad(chosen, (0, spec.counts - chosen.shape[-1]), value=NO_BLOCK)


def is_forced(block: Tensor, own: Tensor) -> Tensor:
    """Return which blocks a token in the block `own` always selects, regardless of their weights."""
    return (block == 0) | (block == own) | (block == own - 1)


def is_selected(blocks: Tensor, length: int, size: int) -> Tensor:
    """Return which tokens are in the selected blocks [K, S, B] of each token, bool [K, S, S]."""
    num_blocks = -(-length // size)
    # The column after the last block takes the entries without a block.
    per_block = torch.zeros(*blocks.shape[:2], num_blocks + 1, dtype=torch.bool, device=blocks.device)
    per_block.scatter_(-1, torch.where(blocks < 0, num_blocks, blocks), True)
    return per_block[..., :num_blocks].repeat_interleave(size, -1)[..., :length]


def _masked_attention(scores: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    weights = scores.masked_fill(~mask, HIDDEN).softmax(-1)
    return torch.einsum("kgst,tkh->skgh", weights, v)


def combine(branches: Iterable[Tensor], gates: Iterable[Tensor]) -> Tensor:
    """Return the sum of the outputs of the branches [S, N, H], each times its gate [S, N]."""
    total, *others = (each * gate[..., None] for each, gate in zip(branches, gates, strict=True))
    for each in others:
        total = total + each
    return total
