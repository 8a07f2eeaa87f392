"""The attention of this project's blocks for other modules: heads that are already rotated, short segments.

T packed tokens, N heads, H channels of a head, K segments. The tiles of a run are computed once per forward
and serve all layers. Queries, keys and values are written into one tensor by a traced `stack`, which a
compiler fuses with the rotation before it; their gradients are views of one tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neobert.kernels.attention import BLOCK, attention_tiles, run_backward, run_forward
from neobert.kernels.operators import differentiate, operator, register_fake
from neobert.model.backends import check_tensors

NAME = "triton_packed"
HEAD_SIZE = 64


# An operator, so that a compiler does not rearrange its arithmetic, and no graph depends on T.
@operator
def _packed_tiles(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    return attention_tiles(cu_seqlens, num_tokens, BLOCK)


@register_fake(_packed_tiles)
def _packed_tiles_fake(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    return cu_seqlens.new_empty(3, num_tokens // BLOCK + cu_seqlens.shape[0], dtype=torch.int32)


@operator
def _packed_heads(qkv: Tensor, tiles: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    return run_forward(qkv, tiles, num_heads)


@register_fake(_packed_heads)
def _packed_heads_fake(qkv: Tensor, tiles: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    total, width = qkv.shape
    return qkv.new_empty(total, width // 3), qkv.new_empty(num_heads, total, dtype=torch.float32)


@operator
def _packed_heads_backward(grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, tiles: Tensor) -> Tensor:
    return run_backward(grad_out.contiguous(), qkv, out, lse, None, tiles)[0]


@register_fake(_packed_heads_backward)
def _packed_heads_backward_fake(grad_out: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, tiles, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(qkv, *output, tiles)


def _compute_gradients(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return _packed_heads_backward(grad_out, *ctx.saved_tensors), None, None


differentiate(_packed_heads, _compute_gradients, _save_for_backward)


def triton_packed(
    cu_seqlens: Tensor, max_seqlen: int, num_tokens: int
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the `attend` within segments of a flat run: q, k, v [T, N, H] to [T, N, H], all in bf16 on CUDA.

    cu_seqlens [K+1]: bounds of the segments; trailing entries may repeat. Rows after the last are one more
    segment.
    """
    tiles = _packed_tiles(cu_seqlens, num_tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Only the comparison is traced, as in `neobert.model.attention`.
        if q.device.type != "cuda" or q.dtype != torch.bfloat16 or q.shape[-1] != HEAD_SIZE:
            check_tensors(NAME, q.device.type, q.dtype, q.shape[-1])
        qkv = torch.stack((q, k, v), dim=2).flatten(1)
        return _packed_heads(qkv, tiles, q.shape[1])[0].view(q.shape)

    return attend
