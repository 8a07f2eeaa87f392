"""Feed-forward branch of a block, with SwiGLU and its gradient in the epilogues of its products.

T tokens, D hidden size, I intermediate size. The fused projection has the published layout: gate in the first
half of its columns, up in the second half. On GPUs without block copies
(`supports_block_copies`), a product and a separate pass replace each program.
"""

from typing import Any

import torch
from torch import Tensor

from neobert.kernels.descriptors import block_descriptor, count_multiprocessors, supports_block_copies
from neobert.kernels.linear import weight_gradient
from neobert.kernels.operators import operator, register_fake

GATE = {"M": 128, "N": 64, "K": 64, "STAGES": 3, "num_warps": 8, "maxnreg": 128}
GRADIENT = {"M": 128, "N": 128, "K": 64, "STAGES": 3, "num_warps": 8}
"""Tiles of the programs: two of them share a multiprocessor, and one computes while the other stores."""


@operator
def _gate(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    if not supports_block_copies(x):
        return _gate_in_two(x, weight)
    from neobert.kernels.jit.products import gate as program

    (rows, size), inner = x.shape, len(weight) // 2
    gate_up, activated = x.new_empty(rows, 2 * inner), x.new_empty(rows, inner)
    m, n, k, columns = GATE["M"], GATE["N"], GATE["K"], -(-inner // GATE["N"])
    results = (*gate_up.chunk(2, 1), activated)
    program[(-(-rows // m) * columns,)](
        block_descriptor(x, m, k), block_descriptor(weight.view(2, inner, size), 2, n, k),
        *(block_descriptor(each, m, n) for each in results),
        D=size, COLUMNS=columns, **GATE,
    )  # fmt: skip
    return gate_up, activated


@register_fake(_gate)
def _gate_fake(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight) // 2)


@operator
def _gate_gradient(grad: Tensor, weight: Tensor, gate_up: Tensor) -> Tensor:
    if not supports_block_copies(grad):
        return _gate_gradient_in_two(grad, weight, gate_up)
    from neobert.kernels.jit.products import gate_gradient as program

    out, (size, inner) = torch.empty_like(gate_up), weight.shape
    m, n, k, columns = GRADIENT["M"], GRADIENT["N"], GRADIENT["K"], -(-inner // GRADIENT["N"])
    halves = (*gate_up.chunk(2, 1), *out.chunk(2, 1))
    program[(min(2 * count_multiprocessors(grad), -(-len(grad) // m) * columns),)](
        block_descriptor(grad, m, k), block_descriptor(weight, k, n),
        *(block_descriptor(each, m, n // 4) for each in halves),
        len(grad), D=size, COLUMNS=columns, **GRADIENT,
    )  # fmt: skip
    return out


@register_fake(_gate_gradient)
def _gate_gradient_fake(grad: Tensor, weight: Tensor, gate_up: Tensor) -> Tensor:
    return torch.empty_like(gate_up)


BLOCK = 2048
"""Elements of the activation per program of the passes after a product."""


def _gate_in_two(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    from neobert.kernels.jit.pointwise import swiglu_forward

    gate_up = x @ weight.t()
    activated = x.new_empty(len(x), len(weight) // 2)
    swiglu_forward[(-(-activated.numel() // BLOCK),)](
        gate_up, activated, activated.numel(), I=activated.shape[1], BLOCK=BLOCK, num_warps=8
    )
    return gate_up, activated


def _gate_gradient_in_two(grad: Tensor, weight: Tensor, gate_up: Tensor) -> Tensor:
    from neobert.kernels.jit.pointwise import swiglu_backward

    inner, out = grad @ weight, torch.empty_like(gate_up)
    swiglu_backward[(-(-inner.numel() // BLOCK),)](
        gate_up, inner, out, inner.numel(), I=inner.shape[1], BLOCK=BLOCK, num_warps=8
    )
    return out


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w12: Tensor, w3: Tensor) -> Tensor:
        low12, low3 = w12.to(x.dtype), w3.to(x.dtype)
        gate_up, activated = _gate(x, low12)
        ctx.save_for_backward(x, gate_up, activated, low12, low3)
        return activated @ low3.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gate_up, activated, low12, low3 = ctx.saved_tensors
        grad_gate_up = _gate_gradient(grad.contiguous(), low3, gate_up)
        weights = weight_gradient(grad_gate_up, x), weight_gradient(grad, activated)
        return grad_gate_up @ low12, *weights


def feed_forward(x: Tensor, w12: Tensor, w3: Tensor) -> Tensor:
    """Project x [T, D] to gate and up by w12 [2I, D], apply SwiGLU, and project back by w3 [D, I]."""
    result: Tensor = _FeedForward.apply(x, w12, w3)
    return result
