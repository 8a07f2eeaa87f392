"""Encoder block whose elementwise operations run in the epilogues of its matrix products.

T packed tokens, D hidden size, H heads, I intermediate size. No elementwise operation needs its own pass over
memory: rotation, residual addition, the sums of squares of the next norm, SwiGLU and both norms' gradients
are epilogues (`neobert.kernels.epilogues`), and attention rotates its gradient back before storing it. The
residual stream is passed with its reciprocal root mean square: a block takes (x, rstd) and returns the next
pair.

`neobert.kernel_table` lists the requirements: head size 64, because the rotation's epilogue needs a head's
query, key and value in one tile of 192 columns, and a Hopper GPU, for which the tile sizes were chosen.
Weights have the published names and layouts; gradients have the weights' dtype and are summed in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from neobert.kernels import attention, flash4, products
from neobert.kernels.linear import weight_gradient
from neobert.kernels.operators import differentiate, operator, register_fake
from neobert.kernels.pointwise import sum_partials
from neobert.kernels.products import NUM_PARTIALS, fold, unfold


class BlockWeights(NamedTuple):
    """Parameters of an encoder block in the published layout."""

    attention_norm: Tensor
    qkv: Tensor
    wo: Tensor
    ffn_norm: Tensor
    w12: Tensor
    w3: Tensor


class SavedActivations(NamedTuple):
    """Results of the forward pass that the backward pass reads, besides input and folded matrices."""

    qkv: Tensor
    attended: Tensor
    lse: Tensor
    middle: Tensor
    middle_rstd: Tensor
    gate_up: Tensor
    activated: Tensor


class FoldedWeights(NamedTuple):
    """Copies of a block's matrices for computation: cast, and for qkv and w12 scaled by the norm's weight."""

    qkv: Tensor
    wo: Tensor
    w12: Tensor
    w3: Tensor


def fold_weights(weights: BlockWeights, dtype: torch.dtype) -> FoldedWeights:
    """Return copies of the matrices in `dtype`, with each norm's weight folded into the following matrix."""
    return FoldedWeights(
        fold(weights.qkv, weights.attention_norm, dtype),
        fold(weights.wo, None, dtype),
        fold(weights.w12, weights.ffn_norm, dtype, interleave=True),
        fold(weights.w3, None, dtype),
    )


def _attend(qkv: Tensor, tables: list[Tensor], num_heads: int, max_seqlen: int) -> tuple[Tensor, Tensor]:
    if max_seqlen:
        return flash4.run_forward(qkv, tables[1], max_seqlen, num_heads)
    return attention.run_forward(qkv, tables[1], num_heads)


def _attend_gradient(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, tables: list[Tensor], rstd: Tensor, max_seqlen: int
) -> tuple[Tensor, Tensor]:
    if max_seqlen:
        grad_qkv, rowdot = flash4.run_backward(grad, qkv, out, lse, tables[0], tables[1], max_seqlen, rstd)
    else:
        grad_qkv, rowdot = attention.run_backward(grad, qkv, out, lse, tables[0], tables[1], rstd)
    assert rowdot is not None
    return grad_qkv, rowdot


@operator
def _block(
    x: Tensor,
    rstd: Tensor,
    weights: list[Tensor],
    tables: list[Tensor],
    num_heads: int,
    max_seqlen: int,
    eps: float,
) -> list[Tensor]:
    # Each line is one product with everything up to the next product in its epilogue. The stream's rstd
    # travels with it: rows of the input are never normalized in memory, their products are scaled instead.
    folded = fold_weights(BlockWeights(*weights), x.dtype)
    qkv = products.project_in(x, rstd, folded.qkv, tables[0])
    attended, lse = _attend(qkv, tables, num_heads, max_seqlen)
    middle, middle_rstd = products.project_back("out", attended, folded.wo, x, eps)
    gate_up, activated = products.project_gate_up(middle, middle_rstd, folded.w12)
    out, out_rstd = products.project_back("down", activated, folded.w3, middle, eps)
    kept = SavedActivations(qkv, attended, lse, middle, middle_rstd, gate_up, activated)
    return [out, out_rstd, *kept, *folded]


@register_fake(_block)
def _block_fake(
    x: Tensor,
    rstd: Tensor,
    weights: list[Tensor],
    tables: list[Tensor],
    num_heads: int,
    max_seqlen: int,
    eps: float,
) -> list[Tensor]:
    total, size = x.shape
    _, w_qkv, wo, _, w12, w3 = weights
    kept = SavedActivations(
        qkv=x.new_empty(total, 3 * size),
        attended=torch.empty_like(x),
        lse=x.new_empty(num_heads, total, dtype=torch.float32),
        middle=torch.empty_like(x),
        middle_rstd=torch.empty_like(rstd),
        gate_up=x.new_empty(total, w12.shape[0]),
        activated=x.new_empty(total, w3.shape[1]),
    )
    folded = (torch.empty_like(weight, dtype=x.dtype) for weight in (w_qkv, wo, w12, w3))
    return [torch.empty_like(x), torch.empty_like(rstd), *kept, *folded]


@operator
def _block_backward(
    grad: Tensor,
    x: Tensor,
    rstd: Tensor,
    weights: list[Tensor],
    tables: list[Tensor],
    saved: list[Tensor],
    max_seqlen: int,
) -> list[Tensor]:
    num_kept, size = len(SavedActivations._fields), x.shape[1]
    parameters, folded = BlockWeights(*weights), FoldedWeights(*saved[num_kept:])
    qkv, attended, lse, middle, middle_rstd, gate_up, activated = SavedActivations(*saved[:num_kept])
    partials = rstd.new_empty(2, NUM_PARTIALS, size)
    # In reverse order of the forward pass. `correction` is the part of a norm's gradient along its input; it
    # needs row sums over the whole product, so it is applied by the next product's epilogue.
    grad_gate_up, dots = products.project_gate_up_gradient(grad, folded.w3, gate_up, middle_rstd)
    grad_w3 = weight_gradient(grad, activated)
    correction = products.norm_gradient_factor(dots, middle_rstd, size)
    grad_middle = products.stream_gradient("up_gradient", grad_gate_up, folded.w12, grad, middle, correction)
    grad_folded = weight_gradient(grad_gate_up, middle)
    grad_w12 = unfold(grad_folded, parameters.w12, parameters.ffn_norm, partials[1], interleave=True)
    grad_wo = weight_gradient(grad_middle, attended)
    # The one product without elementwise work around it: torch's own does.
    grad_attended = grad_middle @ folded.wo
    grad_qkv, rowdot = _attend_gradient(grad_attended, qkv, attended, lse, tables, rstd, max_seqlen)
    correction = products.norm_gradient_factor(rowdot.t(), rstd, size)
    grad_x = products.stream_gradient("qkv_gradient", grad_qkv, folded.qkv, grad_middle, x, correction)
    grad_w_qkv = unfold(weight_gradient(grad_qkv, x), parameters.qkv, parameters.attention_norm, partials[0])
    # Partial sums instead of atomics, so that the gradients of the gains repeat to the last bit.
    grad_attention_norm, grad_ffn_norm = sum_partials(partials)
    grads = BlockWeights(grad_attention_norm, grad_w_qkv, grad_wo, grad_ffn_norm, grad_w12, grad_w3)
    return [grad_x, *(g.to(w.dtype) for g, w in zip(grads, weights, strict=True))]


@register_fake(_block_backward)
def _block_backward_fake(
    grad: Tensor, x: Tensor, rstd: Tensor, weights: list[Tensor], *_: Any
) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(weight) for weight in weights)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, rstd, weights, tables, _, ctx.max_seqlen, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.num_tables = len(tables)
    # The folded copies are kept too: folding again in the backward pass would cost a pass over all weights.
    ctx.save_for_backward(x, rstd, *weights, *tables, *output[2:])


def _compute_gradients(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    x, rstd, *rest = ctx.saved_tensors
    end = len(BlockWeights._fields) + ctx.num_tables
    weights, tables, saved = (
        rest[: len(BlockWeights._fields)],
        rest[len(BlockWeights._fields) : end],
        rest[end:],
    )
    assert grads[0] is not None
    grad_x, *grad_weights = _block_backward(
        grads[0].contiguous(), x, rstd, weights, tables, saved, ctx.max_seqlen
    )
    return grad_x, None, grad_weights, [None] * ctx.num_tables, None, None, None


differentiate(_block, _compute_gradients, _save_for_backward)


def encoder_block(
    x: Tensor,
    rstd: Tensor,
    weights: BlockWeights,
    rotary: Tensor,
    segments: Tensor,
    *,
    num_heads: int,
    eps: float,
    max_seqlen: int = 0,
) -> tuple[Tensor, Tensor]:
    """Run one pre-norm encoder block on x [T, D] bfloat16 with rstd [T]; return both for the next block.

    rotary: result of `rotary_table`. segments: result of `attention_tiles` for this project's attention, or,
    with max_seqlen > 0, int32 cu_seqlens for FlashAttention 4. The first block gets rstd from `row_rstd`.
    rstd has no gradient of its own: the gradient of x includes the gradient through the norm.
    """
    outputs = _block(x, rstd, list(weights), [rotary, segments], num_heads, max_seqlen, eps)
    return outputs[0], outputs[1]
