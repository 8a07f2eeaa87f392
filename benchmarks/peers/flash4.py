"""FlashAttention 4 as an operator that torch.compile traces. Needs the flash-attn-4 package.

In rows, tensors are [B, S, H, E]; packed, with boundaries of documents, they are [T, H, E].
"""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("peers::flash4", mutates_args=())
def flash4(
    query: Tensor, key: Tensor, value: Tensor, cu: Tensor | None, longest: int | None
) -> tuple[Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_fwd

    bounds = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    out, lse = _flash_attn_fwd(query, key, value, return_lse=True, **bounds)[:2]
    return out, lse


@flash4.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    *rows, length, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty(*rows, heads, length, dtype=torch.float32)


@torch.library.custom_op("peers::flash4_backward", mutates_args=())
def flash4_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu: Tensor | None,
    longest: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_bwd

    grads = tuple(
        torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (query, key, value)
    )
    bounds = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    _flash_attn_bwd(
        query, key, value, out, grad.contiguous(), lse, **bounds, dq=grads[0], dk=grads[1], dv=grads[2]
    )
    return grads


@flash4_backward.register_fake
def _(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *_more: Any) -> tuple[Tensor, Tensor, Tensor]:
    first, second, third = (each.new_empty(each.shape) for each in (query, key, value))
    return first, second, third


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, cu, ctx.longest = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, *output, cu)


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    query, key, value, out, lse, cu = ctx.saved_tensors
    return *flash4_backward(grad, query, key, value, out, lse, cu, ctx.longest), None, None


flash4.register_autograd(_differentiate, setup_context=_save)
