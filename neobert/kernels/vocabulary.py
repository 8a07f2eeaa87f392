"""Token embedding lookup, and the decoder with its cross-entropy (chunked linear cross-entropy).

M rows (a row with a negative label has no loss), D hidden size, V vocabulary size.

torch.compile lowers the backward pass of torch.nn.functional.embedding to atomic additions in varying order;
the lookup here is deterministic.

The loss stores one chunk of logits at a time, and computes the gradients in the forward pass: the logits of a
chunk are overwritten by their gradient and multiplied by hidden states and weights at once. The backward pass
needs no logits and only scales the gradients. This works because the loss is a sum: its gradient with respect
to the logits, softmax - onehot, does not depend on other chunks. A frozen weight gets no gradient:
that saves one of three products, and its result of V x D.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from neobert.kernels.linear import accumulation_dtype
from neobert.kernels.operators import differentiate, operator, register_fake
from neobert.kernels.pointwise import next_power_of_two
from neobert.plan.memory import rows_per_chunk as chunk_rows
from neobert.plan.vocabulary import round_up

NO_PADDING = -1


@operator
def _embedding(ids: Tensor, weight: Tensor, padding_id: int) -> Tensor:
    return torch.ops.aten.embedding(weight, ids, padding_id)


@register_fake(_embedding)
def _embedding_fake(ids: Tensor, weight: Tensor, padding_id: int) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


@operator
def _embedding_backward(grad: Tensor, ids: Tensor, num_rows: int, padding_id: int) -> Tensor:
    # torch's eager kernel sorts the ids and adds in that order: equal inputs give equal bits. As an opaque
    # operator it stays that kernel under torch.compile.
    return torch.ops.aten.embedding_dense_backward(grad, ids, num_rows, padding_id, False)


@register_fake(_embedding_backward)
def _embedding_backward_fake(grad: Tensor, ids: Tensor, num_rows: int, padding_id: int) -> Tensor:
    return grad.new_empty(num_rows, grad.shape[-1])


def _save_ids(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, weight, ctx.padding_id = inputs
    ctx.num_rows = weight.shape[0]
    ctx.save_for_backward(ids)


def _compute_lookup_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (ids,) = ctx.saved_tensors
    return None, _embedding_backward(grad, ids, ctx.num_rows, ctx.padding_id), None


differentiate(_embedding, _compute_lookup_gradient, _save_ids)


def embedding(ids: Tensor, weight: Tensor, padding_id: int | None) -> Tensor:
    """Return the rows of weight [V, D] for ids [...] int64, [..., D]; row `padding_id` gets no gradient."""
    return _embedding(ids, weight, NO_PADDING if padding_id is None else padding_id)


BLOCK, NUM_WARPS = 32_768, 16
"""Number of logits that a Triton program holds in registers at once, and its number of warps."""

ROW_MULTIPLE = 64
"""Rows of the buffer of logits start at multiples of this: rows of an odd vocabulary are not aligned."""

Program = Literal["triton", "torch"]


def _cross_entropy_by_triton(
    logits: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    losses: Tensor,
    z_loss: float,
    softcap: float | None,
) -> None:
    from neobert.kernels.jit.loss import cross_entropy_in_place

    vocab = logits.shape[1]
    cross_entropy_in_place[(logits.shape[0],)](
        logits, bias, labels, losses, logits.stride(0), z_loss, softcap or 1.0,
        V=vocab, BLOCK=min(BLOCK, next_power_of_two(vocab)),
        HAS_BIAS=bias is not None, HAS_Z_LOSS=z_loss > 0, HAS_SOFTCAP=softcap is not None,
        num_warps=NUM_WARPS,
    )  # fmt: skip


def _cross_entropy_by_torch(
    logits: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    losses: Tensor,
    z_loss: float,
    softcap: float | None,
) -> None:
    """Replace logits [M, V] in place with the gradient of the summed loss; write row losses to losses."""
    # One copy in the type of the losses (fp32 or wider) is enough: the softmax is computed in it, in place.
    wide = logits.to(losses.dtype, copy=True)
    if bias is not None:
        wide += bias
    if softcap is not None:
        wide.div_(softcap).tanh_().mul_(softcap)
        slope = 1 - (wide / softcap).square()
    is_target, rows = labels >= 0, torch.arange(len(labels), device=labels.device)
    columns = labels.clamp(min=0)
    normalizer = wide.logsumexp(1)
    own = normalizer - wide[rows, columns]
    losses.copy_(torch.where(is_target, own + z_loss * normalizer.square() if z_loss else own, 0.0))
    # exp(logits - logsumexp) is the softmax without a second pass for the largest logit.
    wide.sub_(normalizer[:, None]).exp_()
    if z_loss:
        wide *= (1 + 2 * z_loss * normalizer)[:, None]
    wide[rows, columns] -= 1.0
    if softcap is not None:
        wide *= slope
    # A filler row has to give exact zeros: it shares its chunk's products with the targets.
    logits.copy_(wide.mul_(is_target[:, None]))


PROGRAMS: dict[str, Callable[[Tensor, Tensor | None, Tensor, Tensor, float, float | None], None]] = {
    "triton": _cross_entropy_by_triton,
    "torch": _cross_entropy_by_torch,
}


@operator
def _linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rows_per_chunk: int,
    program: str,
    z_loss: float,
    softcap: float | None,
    is_trained: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = accumulation_dtype(hidden)
    # A copy, cast once for all chunks: the decoder's own weights stay in fp32.
    matrix = weight.to(hidden.dtype)
    losses = hidden.new_empty(hidden.shape[0], dtype=wide)
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.zeros_like(weight if is_trained else weight[:0], dtype=wide)
    grad_bias = torch.zeros(0 if bias is None else len(bias), dtype=wide, device=hidden.device)
    buffer = _logits_buffer(hidden, min(rows_per_chunk, len(hidden)), len(weight))
    for start in range(0, hidden.shape[0], rows_per_chunk):
        chunk = slice(start, start + rows_per_chunk)
        rows = hidden[chunk]
        logits = torch.mm(rows, matrix.t(), out=buffer[: len(rows)])
        PROGRAMS[program](logits, bias, labels[chunk], losses[chunk], z_loss, softcap)
        torch.mm(logits, matrix, out=grad_hidden[chunk])
        if is_trained:
            _add_weight_gradient(grad_weight, logits, rows)
        if bias is not None:
            grad_bias += logits.sum(0, dtype=wide)
    return losses.sum(), grad_hidden, grad_weight, grad_bias


def _logits_buffer(hidden: Tensor, num_rows: int, vocab: int) -> Tensor:
    """Allocate the logits [num_rows, vocab] of one chunk, which all chunks reuse."""
    return hidden.new_empty(num_rows, round_up(vocab, ROW_MULTIPLE))[:, :vocab]


def _add_weight_gradient(grad_weight: Tensor, grad_logits: Tensor, rows: Tensor) -> None:
    """Add grad_logits.T @ rows of a chunk to grad_weight [V, D] in place, in the dtype of grad_weight."""
    if grad_logits.dtype == grad_weight.dtype:
        grad_weight.addmm_(grad_logits.t(), rows)
    elif grad_logits.is_cuda:
        # cuBLAS adds to the result: a temporary of V x D would be written and read again for every chunk.
        torch.addmm(grad_weight, grad_logits.t(), rows, out_dtype=torch.float32, out=grad_weight)
    else:
        grad_weight += grad_logits.t().float() @ rows.float()


@register_fake(_linear_cross_entropy)
def _linear_cross_entropy_fake(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    wide, is_trained = accumulation_dtype(hidden), rest[-1]
    return (
        hidden.new_empty((), dtype=wide),
        torch.empty_like(hidden),
        torch.empty_like(weight if is_trained else weight[:0], dtype=wide),
        weight.new_empty(0 if bias is None else len(bias), dtype=wide),
    )


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, bias, *_, is_trained = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.weight_dtype, ctx.has_bias, ctx.is_trained = weight.dtype, bias is not None, is_trained
    ctx.save_for_backward(*output[1:])


def _compute_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
    weight = (grad_weight * grad).to(ctx.weight_dtype) if ctx.is_trained else None
    bias = (grad_bias * grad).to(ctx.weight_dtype) if ctx.has_bias else None
    return (grad_hidden * grad).to(grad_hidden.dtype), weight, bias, *[None] * 6


differentiate(_linear_cross_entropy, _compute_gradients, _save_for_backward)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rows_per_chunk: int | None = None,
    program: Program | None = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Return the cross-entropy of hidden @ weight.T + bias, summed over the rows with a non-negative label.

    Each of these rows also adds z_loss times the squared logsumexp of its logits (z-loss, arXiv:2204.02311).
    With softcap, logits are first replaced by softcap * tanh(logit / softcap).
    hidden [M, D], weight [V, D], labels [M] int64. Products are computed in the dtype of hidden; the gradient
    of the weight accumulates in fp32. If rows_per_chunk or program is None, it is chosen for the device: on a
    GPU `triton`, except for fp64.
    """
    # Triton computes in fp32: fp64 is a reference.
    program = program or ("triton" if hidden.is_cuda and hidden.dtype != torch.float64 else "torch")
    rows = rows_per_chunk or chunk_rows(len(hidden), len(weight), in_place=program == "triton")
    options = (rows, program, z_loss, softcap, weight.requires_grad)
    return _linear_cross_entropy(hidden, weight, bias, labels, *options)[0]
