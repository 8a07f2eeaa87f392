"""FlashAttention 4 as one operator that torch.compile traces without a graph break. Copied into checkpoints.

T tokens, N heads, H channels of a head.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

INTERFACE = (
    "flash_attn.cute.interface"  # by name: transformers refuses a file whose imports are not installed
)


@torch.library.custom_op("neobert::flash4_varlen", mutates_args=())
def _attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), _new_lse(q)
    segments = _segments(cu_seqlens, max_seqlen)
    import_module(INTERFACE)._flash_attn_fwd(q, k, v, return_lse=True, out=out, lse=lse, **segments)
    return out, lse


def _new_lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


def _segments(cu_seqlens: Tensor, max_seqlen: int) -> dict[str, Any]:
    bounds = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    return {**bounds, "max_seqlen_q": max_seqlen, "max_seqlen_k": max_seqlen}


@_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), _new_lse(q)


@torch.library.custom_op("neobert::flash4_varlen_backward", mutates_args=())
def _gradient(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
) -> tuple[Tensor, Tensor, Tensor]:
    # The kernel writes into tensors that it is given, so that the operator allocates what its fake promises.
    dq, dk, dv = _new_gradients(q, k, v)
    segments = _segments(cu_seqlens, max_seqlen)
    import_module(INTERFACE)._flash_attn_bwd(
        q, k, v, out, grad.contiguous(), lse, dq=dq, dk=dk, dv=dv, **segments
    )
    return dq, dk, dv


def _new_gradients(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
    return q, k, v


@_gradient.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    return _new_gradients(q, k, v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_seqlens, ctx.max_seqlen = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, cu_seqlens)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *_gradient(grad, *ctx.saved_tensors, ctx.max_seqlen), None, None


_attention.register_autograd(_differentiate, setup_context=_save)


def flash4_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,  # noqa: ARG001
    max_seqlen: int,
    max_seqlen_k: int,  # noqa: ARG001
) -> Tensor:
    """Run attention within segments: q, k, v [T, N, H]. Same signature as the other varlen kernels."""
    return _attention(q, k, v, cu_seqlens, max_seqlen)[0]
