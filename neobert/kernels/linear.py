"""Linear projections in the dtype of their input, with gradients of their weights in float32.

T tokens, D input features, N output features. A weight is cast for the products, and its gradient is summed
and stored in float32: rounded to bfloat16 in between, small gradients are lost when microbatches are
accumulated, and the conversion is a pass of its own.
"""

from typing import Any

import torch
from torch import Tensor


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a weight, grad.T @ x [N, D], in float32, of grad [T, N] and x [T, D]."""
    if grad.dtype == accumulation_dtype(grad):
        return grad.t() @ x
    return torch.mm(grad.t(), x, out_dtype=accumulation_dtype(grad))


def accumulation_dtype(values: Tensor) -> torch.dtype:
    """Return the dtype for sums: fp32, or fp64 for values in fp64, which are the reference."""
    return torch.promote_types(values.dtype, torch.float32)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        return x @ low.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, low = ctx.saved_tensors
        return grad @ low, weight_gradient(grad, x)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [T, D] @ weight.T for a weight [N, D] of any floating dtype, in the dtype of x."""
    result: Tensor = _Linear.apply(x, weight)
    return result
