"""FlashAttention 4 for the qkv layout of `neobert.kernels.attention`; faster for segments of 1000s of rows.

T packed tokens, H heads, E head size. Needs the flash-attn-4 package and a Hopper or newer GPU.
"""

from typing import Any

import torch
from torch import Tensor

from neobert.kernels.attention import fake_results, project, rotate
from neobert.kernels.linear import weight_gradient
from neobert.kernels.operators import operator, register_fake


def _split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    view = qkv.view(qkv.shape[0], num_heads, 3, -1)
    return view[:, :, 0], view[:, :, 1], view[:, :, 2]


def run_forward(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int) -> tuple[Tensor, Tensor]:
    """Attend over rotated qkv [T, 3 * H * E]; return out [T, H * E] and natural log-sum-exps [H, T]."""
    from flash_attn.cute.interface import _flash_attn_fwd

    # Strided views of the fused product: FlashAttention takes strides, so nothing is copied.
    q, k, v = _split_heads(qkv, num_heads)
    out = qkv.new_empty(qkv.shape[0], num_heads, q.shape[-1])
    lse = qkv.new_empty(num_heads, qkv.shape[0], dtype=torch.float32)
    _flash_attn_fwd(
        q.detach(), k.detach(), v.detach(), cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen, return_lse=True, out=out, lse=lse,
    )  # fmt: skip
    return out.view(qkv.shape[0], -1), lse


def run_backward(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    rotary: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient with respect to the unrotated qkv, and row sums if rstd is given (else None).

    The row sums are as in `attention.run_backward`.
    """
    from flash_attn.cute.interface import _flash_attn_bwd

    num_heads, total = lse.shape
    grad_qkv = torch.empty_like(qkv)
    parts, grads = _split_heads(qkv, num_heads), _split_heads(grad_qkv, num_heads)
    _flash_attn_bwd(
        *parts, out.view(total, num_heads, -1), grad_out.view(total, num_heads, -1), lse,
        cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen,
        dq=grads[0], dk=grads[1], dv=grads[2],
    )  # fmt: skip
    # This kernel does not rotate: its gradient is rotated back in a separate pass, in place.
    if rstd is None:
        return rotate(grad_qkv, rotary, num_heads, sign=-1), None
    return grad_qkv, _rotate_and_scale(qkv, grad_qkv, rstd, rotary, num_heads)


def _rotate_and_scale(qkv: Tensor, grad_qkv: Tensor, rstd: Tensor, rotary: Tensor, num_heads: int) -> Tensor:
    from neobert.kernels.jit.pointwise import finish_attention_gradient

    total, rows = qkv.shape[0], 8
    rowdot = rstd.new_empty(num_heads, total)
    finish_attention_gradient[(-(-total // rows), num_heads)](
        qkv, grad_qkv, rstd, rotary, rowdot, total, H=num_heads, E=qkv.shape[1] // (3 * num_heads), ROWS=rows
    )
    return rowdot


@operator
def _flash4(
    x: Tensor, weight: Tensor, rotary: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    qkv = project(x, weight, rotary, num_heads)
    return *run_forward(qkv, cu_seqlens, max_seqlen, num_heads), qkv


@register_fake(_flash4)
def _flash4_fake(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return fake_results(x, weight, rest[-1])


@operator
def _flash4_backward(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    rotary: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
) -> Tensor:
    return run_backward(grad_out.contiguous(), qkv, out, lse, rotary, cu_seqlens, max_seqlen)[0]


@register_fake(_flash4_backward)
def _flash4_backward_fake(grad_out: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv)


class _RotaryAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, rotary: Tensor, cu_seqlens: Tensor, max_seqlen: int,
        num_heads: int,
    ) -> Tensor:  # fmt: skip
        low = weight.to(x.dtype)
        out, lse, qkv = _flash4(x, low, rotary, cu_seqlens, max_seqlen, num_heads)
        ctx.max_seqlen = max_seqlen
        ctx.save_for_backward(x, low, qkv, out, lse, rotary, cu_seqlens)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, low, *rest = ctx.saved_tensors
        grad = _flash4_backward(grad_out, *rest, ctx.max_seqlen)
        return grad @ low, weight_gradient(grad, x), None, None, None, None


def rotary_attention(
    x: Tensor, weight: Tensor, rotary: Tensor, cu_seqlens: Tensor, max_seqlen: int, num_heads: int
) -> Tensor:
    """Project x [T, D] to qkv, rotate queries and keys, and attend within segments; return [T, H * E].

    weight: [3 * H * E, D]. rotary: result of `attention.rotary_table`. cu_seqlens: int32 [S + 1] for S
    segments.
    """
    result: Tensor = _RotaryAttention.apply(x, weight, rotary, cu_seqlens, max_seqlen, num_heads)
    return result
