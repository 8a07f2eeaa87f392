"""Decoder and cross-entropy on the masked rows, in one operator that keeps no logits.

M masked rows (a row with a negative label counts for nothing), D hidden, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from neobert.kernels.tiles import power_of_two

NUM_WARPS = 16


@torch.library.custom_op("neobert::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rows_per_chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from neobert.kernels.jit.loss import cross_entropy_in_place

    vocab = weight.shape[0]
    matrix = weight.to(hidden.dtype)
    losses = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.zeros_like(weight, dtype=torch.float32)
    grad_bias = torch.zeros(vocab if bias is not None else 0, dtype=torch.float32, device=hidden.device)
    for start in range(0, hidden.shape[0], rows_per_chunk):
        rows = hidden[start : start + rows_per_chunk]
        logits = rows @ matrix.t()
        cross_entropy_in_place[(rows.shape[0],)](
            logits, bias, labels[start:], losses[start:], logits.stride(0),
            V=vocab, WIDTH=power_of_two(vocab), HAS_BIAS=bias is not None, num_warps=NUM_WARPS,
        )  # fmt: skip
        torch.mm(logits, matrix, out=grad_hidden[start : start + rows_per_chunk])
        _accumulate(grad_weight, logits, rows, is_first=start == 0)
        if bias is not None:
            grad_bias += logits.sum(0, dtype=torch.float32)
    return losses.sum(), grad_hidden, grad_weight, grad_bias


def _accumulate(grad_weight: Tensor, grad_logits: Tensor, rows: Tensor, *, is_first: bool) -> None:
    if grad_logits.is_cuda and is_first:
        torch.mm(grad_logits.t(), rows, out_dtype=torch.float32, out=grad_weight)
    elif grad_logits.is_cuda:
        grad_weight += torch.mm(grad_logits.t(), rows, out_dtype=torch.float32)
    else:
        grad_weight += grad_logits.t().float() @ rows.float()


@_linear_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    single = {"dtype": torch.float32}
    grad_bias = weight.new_empty(weight.shape[0] if bias is not None else 0, **single)
    return (
        hidden.new_empty((), **single),
        torch.empty_like(hidden),
        torch.empty_like(weight, **single),
        grad_bias,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, bias, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.weight_dtype, ctx.has_bias = weight.dtype, bias is not None
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
    weight = (grad_weight * grad).to(ctx.weight_dtype)
    bias = (grad_bias * grad).to(ctx.weight_dtype) if ctx.has_bias else None
    return (grad_hidden * grad).to(grad_hidden.dtype), weight, bias, None, None


_linear_cross_entropy.register_autograd(_differentiate, setup_context=_save)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rows_per_chunk: int = 8192
) -> Tensor:
    """Sum of -log softmax(hidden @ weight.T + bias)[label] over rows whose label is not negative.

    hidden [M, D], weight [V, D], labels [M] int64. Gradients are computed with the loss, chunk by chunk, and
    only scaled by the backward pass; the weight's accumulates in float32.
    """
    return _linear_cross_entropy(hidden, weight, bias, labels, rows_per_chunk)[0]
