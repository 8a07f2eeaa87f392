"""torch's flex_attention over packed documents and padded rows. Copied into every checkpoint folder.

The BlockMask is built once per microbatch for all blocks, from cu_seqlens and without a device
synchronization. Its shape depends on T only, so all microbatches share one compiled program.

Shapes: T packed tokens, N heads, H channels of a head, K segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

TILE = 128

_compiled: Callable[..., Any] | None = None


def document_mask(cu_seqlens: Tensor, num_tokens: int) -> BlockMask:
    """Return the BlockMask that limits attention to each token's own segment.

    cu_seqlens [K+1] from 0 to T, empty segments allowed.
    """
    segment, counts, indices = document_tiles(cu_seqlens, num_tokens)

    def in_one_segment(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
        return segment[query] == segment[key]

    return BlockMask.from_kv_blocks(
        counts[None, None],
        indices[None, None],
        BLOCK_SIZE=TILE,
        mask_mod=in_one_segment,
        seq_lengths=(num_tokens, num_tokens),
    )


def row_mask(mask: Tensor) -> BlockMask:
    """Convert a mask [B, 1 or N, 1 or S, S], True where a query attends, to a block mask.

    Raises `ValueError` for a mask of floats, which would be added to the scores.
    """
    if mask.dtype != torch.bool:
        raise ValueError("flex_attention requires a bool or int attention_mask of 0 and 1, not a float mask")
    rows, heads, _, length = mask.shape
    is_open = mask.expand(-1, -1, length, -1)

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return is_open[batch, head if heads > 1 else 0, query, key]

    return create_block_mask(
        attends, rows, heads if heads > 1 else None, length, length, device=str(mask.device)
    )


# An operator, because inductor of torch 2.11 reads wrong tiles where it compiles their arithmetic together
# with the attention on a GPU.
@torch.library.custom_op("neobert::document_tiles", mutates_args=())
def document_tiles(cu_seqlens: Tensor, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the segment of each token [T], and the number and indices of the key tiles of each query tile.

    The tiles of `TILE` tokens cover T; the outputs are int64 [T], int32 [tiles] and int32 [tiles, tiles].
    """
    device = cu_seqlens.device
    segment = torch.searchsorted(
        cu_seqlens[1:], torch.arange(num_tokens, device=device, dtype=cu_seqlens.dtype), right=True
    )
    num_tiles = -(-num_tokens // TILE)
    tiles = torch.arange(num_tiles, device=device)
    # What a tile of queries sees is one piece: its first token's segment to the end of its last token's.
    first = cu_seqlens[segment[tiles * TILE]] // TILE
    last_token = (tiles * TILE + TILE - 1).clamp(max=num_tokens - 1)
    last = (cu_seqlens[segment[last_token] + 1] - 1) // TILE
    counts = (last - first + 1).to(torch.int32)
    # Entries beyond the count are not read; modulo keeps them legal.
    indices = ((first[:, None] + tiles) % num_tiles).to(torch.int32)
    return segment, counts, indices


def document_tiles_fake(cu_seqlens: Tensor, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of the shapes and dtypes of `document_tiles`, for the compiler."""
    num_tiles = -(-num_tokens // TILE)
    return (
        cu_seqlens.new_empty(num_tokens, dtype=torch.int64),
        cu_seqlens.new_empty(num_tiles, dtype=torch.int32),
        cu_seqlens.new_empty((num_tiles, num_tiles), dtype=torch.int32),
    )


document_tiles.register_fake(document_tiles_fake)


def flex_in_documents(
    cu_seqlens: Tensor,
    max_seqlen: int,  # noqa: ARG001
    num_tokens: int,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the `attend` within documents for q, k, v [T, N, H]; all blocks share its mask."""
    mask = document_mask(cu_seqlens, num_tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # flex_attention takes [batch, heads, tokens, channels]: views, nothing is copied.
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        context: Tensor = _flex_program()(q, k, v, block_mask=mask)
        return context[0].transpose(0, 1)

    return attend


def _flex_program() -> Callable[..., Any]:
    """Return flex_attention itself while compiling, else its compiled form: in eager mode it is dense."""
    global _compiled
    if torch.compiler.is_compiling():
        return flex_attention
    if _compiled is None:
        _compiled = torch.compile(flex_attention, dynamic=False)
    return _compiled
