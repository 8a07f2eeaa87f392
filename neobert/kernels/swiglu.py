"""SwiGLU on the fused product of the published layout.

Gate in the first half of the columns, up in the second.

M rows, I intermediate. The backward pass computes the activation again, so the forward pass keeps only its
input.
"""

from typing import Any

import torch
from torch import Tensor

BLOCK = 2048


@torch.library.custom_op("neobert::swiglu", mutates_args=())
def _swiglu(gate_up: Tensor) -> Tensor:
    from neobert.kernels.jit.pointwise import swiglu_forward

    rows, width = gate_up.shape
    out = gate_up.new_empty(rows, width // 2)
    swiglu_forward[((out.numel() + BLOCK - 1) // BLOCK,)](
        gate_up, out, out.numel(), I=width // 2, BLOCK=BLOCK, num_warps=8
    )
    return out


@_swiglu.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@torch.library.custom_op("neobert::swiglu_backward", mutates_args=())
def _swiglu_backward(gate_up: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    from neobert.kernels.jit.pointwise import swiglu_backward

    grad, out = torch.empty_like(gate_up), torch.empty_like(grad_out)
    swiglu_backward[((out.numel() + BLOCK - 1) // BLOCK,)](
        gate_up, grad_out, grad, out, out.numel(), I=out.shape[1], BLOCK=BLOCK, num_warps=8
    )
    return grad, out


@_swiglu_backward.register_fake
def _(gate_up: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate_up), torch.empty_like(grad_out)


class _GatedDown(torch.autograd.Function):
    """down(silu(gate) * up), keeping gate_up alone.

    The activation returns from the backward pass's own kernel.
    """

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up, weight)
        return _swiglu(gate_up) @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate_up, weight = ctx.saved_tensors
        # The activation comes out of the same pass over gate_up that its gradient needs: keeping it from the
        # forward pass would cost T x I of memory to save nothing.
        grad_gate_up, activated = _swiglu_backward(gate_up, grad @ weight)
        return grad_gate_up, grad.t() @ activated


def swiglu_down(gate_up: Tensor, weight: Tensor) -> Tensor:
    """Multiply silu(gate) * up [M, I] by the down projection [D, I]: [M, 2I] to [M, D]."""
    return _GatedDown.apply(gate_up, weight)
