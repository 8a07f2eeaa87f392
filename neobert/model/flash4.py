"""FlashAttention 4 as one operator that torch.compile traces without a graph break. Copied into checkpoints.

T tokens, N query heads, K heads of keys and values, H channels of a head.
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
def _flash4_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    earlier: int,
    later: int,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), _new_lse(q)
    options = _kernel_options(cu_seqlens, max_seqlen, earlier, later, scale)
    import_module(INTERFACE)._flash_attn_fwd(q, k, v, return_lse=True, out=out, lse=lse, **options)
    return out, lse


def _new_lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


def _kernel_options(
    cu_seqlens: Tensor, max_seqlen: int, earlier: int, later: int, scale: float | None
) -> dict[str, Any]:
    return {
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_k": cu_seqlens,
        "max_seqlen_q": max_seqlen,
        "max_seqlen_k": max_seqlen,
        # A window without a right side selects the causal program: it walks fewer tiles.
        "causal": later == 0,
        # Here -1 would be a window of -1 tokens: a side without a limit is None.
        "window_size_left": None if earlier < 0 else earlier,
        "window_size_right": None if later < 0 else later,
        "softmax_scale": scale,
    }


@_flash4_forward.register_fake
def _flash4_forward_fake(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), _new_lse(q)


@torch.library.custom_op("neobert::flash4_varlen_backward", mutates_args=())
def _flash4_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    earlier: int,
    later: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    # The kernel writes into tensors that it is given, so that the operator allocates what its fake promises.
    dq, dk, dv = _new_gradients(q, k, v)
    options = _kernel_options(cu_seqlens, max_seqlen, earlier, later, scale)
    import_module(INTERFACE)._flash_attn_bwd(
        q, k, v, out, grad.contiguous(), lse, dq=dq, dk=dk, dv=dv, **options
    )
    return dq, dk, dv


def _new_gradients(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
    return q, k, v


@_flash4_backward.register_fake
def _flash4_backward_fake(
    _grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _new_gradients(q, k, v)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_seqlens, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, *output, cu_seqlens)


def _compute_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    return *_flash4_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None, None


_flash4_forward.register_autograd(_compute_gradients, setup_context=_save_for_backward)


def flash4_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,  # noqa: ARG001
    max_seqlen: int,
    max_seqlen_k: int,  # noqa: ARG001
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
) -> Tensor:
    """Run attention within segments: q [T, N, H], k and v [T, K, H] to [T, N, H].

    Arguments match FlashAttention 2 and 3: `window_size` is the number of earlier and of later tokens
    that a token attends to, -1 for all; `softmax_scale` None is H ** -0.5.
    """
    earlier, later = window_size
    return _flash4_forward(q, k, v, cu_seqlens, max_seqlen, earlier, 0 if causal else later, softmax_scale)[0]
