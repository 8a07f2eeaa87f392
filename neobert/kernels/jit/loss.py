"""Triton program for cross-entropy over a row of logits: read once, its gradient written over it."""

import triton
import triton.language as tl


@triton.jit
def cross_entropy_in_place(
    logits, bias, labels, loss, row_stride, V: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """loss[m] = logsumexp - logit of the label; logits become softmax - one_hot.

    A negative label: zero loss and gradient.
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    cols = tl.arange(0, WIDTH)
    at = logits + row * row_stride + cols
    inside = cols < V
    if label < 0:
        tl.store(loss + row, 0.0)
        tl.store(at, tl.zeros((WIDTH,), logits.dtype.element_ty), mask=inside)
        return
    value = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(value, 0)
    p = tl.exp(value - peak)
    mass = tl.sum(p, 0)
    chosen = tl.sum(tl.where(cols == label, value, 0.0), 0)
    tl.store(loss + row, tl.log(mass) + peak - chosen)
    grad = p / mass - tl.where(cols == label, 1.0, 0.0)
    tl.store(at, grad.to(logits.dtype.element_ty), mask=inside)
