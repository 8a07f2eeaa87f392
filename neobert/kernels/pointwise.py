"""Residual addition with RMSNorm, fused into one pass.

M rows, D hidden size.
"""

from typing import Any

import torch
from torch import Tensor

from neobert.kernels.operators import differentiate, operator, register_fake

ROWS = 4
NUM_PARTIALS = 528
"""Programs of the backward pass, each with its own partial sum: four per multiprocessor of a Hopper GPU."""


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`: the Triton block width for such rows."""
    return 1 << (size - 1).bit_length()


@operator
def _add_rms_norm(
    x: Tensor, branch: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from neobert.kernels.jit.norm import add_norm_forward

    num_rows, size = x.shape
    # An operator may not return its input, so without a branch an empty tensor takes the place of the sum.
    out = x.new_empty(0) if branch is None else torch.empty_like(x)
    normed, rstd = torch.empty_like(x), x.new_empty(num_rows, dtype=torch.float32)
    add_norm_forward[(-(-num_rows // ROWS),)](
        x, branch, weight, out, normed, rstd, num_rows, eps,
        D=size, WIDTH=next_power_of_two(size), ROWS=ROWS, HAS_BRANCH=branch is not None, num_warps=4,
    )  # fmt: skip
    return out, normed, rstd


@register_fake(_add_rms_norm)
def _add_rms_norm_fake(
    x: Tensor, branch: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    out = x.new_empty(0) if branch is None else torch.empty_like(x)
    return out, torch.empty_like(x), x.new_empty(x.shape[0], dtype=torch.float32)


@operator
def _add_rms_norm_backward(
    grad_normed: Tensor, grad_out: Tensor | None, out: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    from neobert.kernels.jit.norm import add_norm_backward

    num_rows, size = out.shape
    grad_x = torch.empty_like(out)
    programs = min(NUM_PARTIALS, -(-num_rows // ROWS))
    partial = out.new_empty(programs, size, dtype=torch.float32)
    add_norm_backward[(programs,)](
        grad_normed, grad_out, out, weight, rstd, grad_x, partial, num_rows,
        D=size, WIDTH=next_power_of_two(size), ROWS=ROWS, HAS_BRANCH=grad_out is not None, num_warps=4,
    )  # fmt: skip
    return grad_x, sum_partials(partial[None])[0].to(weight.dtype)


@register_fake(_add_rms_norm_backward)
def _add_rms_norm_backward_fake(
    grad_normed: Tensor, grad_out: Tensor | None, out: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(out), torch.empty_like(weight)


def sum_partials(partials: Tensor) -> Tensor:
    """Sum partials [N, P, D], float32, over P: [N, D], equal to the last bit for equal inputs."""
    from neobert.kernels.jit.pointwise import sum_partials as program

    number, parts, size = partials.shape
    sums, columns = partials.new_empty(number, size), 16
    program[(number, -(-size // columns))](partials, sums, parts, D=size, COLS=columns, ROWS=256)
    return sums


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, branch, weight, _ = inputs
    out, _, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(rstd)
    ctx.has_branch = branch is not None
    ctx.save_for_backward(out if ctx.has_branch else x, weight, rstd)


def _compute_gradients(ctx: Any, grad_out: Tensor, grad_normed: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    out, weight, rstd = ctx.saved_tensors
    past = grad_out.contiguous() if ctx.has_branch else None
    grad_x, grad_weight = _add_rms_norm_backward(grad_normed.contiguous(), past, out, weight, rstd)
    # Both addends have the same gradient: one tensor serves both.
    return grad_x, grad_x if ctx.has_branch else None, grad_weight, None


differentiate(_add_rms_norm, _compute_gradients, _save_for_backward)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMSNorm to x [M, D], with statistics in float32 and the result in x's dtype."""
    return _add_rms_norm(x, None, weight, eps)[1]


def add_rms_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + branch [M, D] and the RMSNorm of the sum, computed in one pass."""
    out, normed, _ = _add_rms_norm(x, branch, weight, eps)
    return out, normed
