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
    # One program per row, the whole row in registers: read once, written once.
    cols = tl.arange(0, WIDTH)
    at = logits + row * row_stride + cols
    inside = cols < V
    # The products that follow read every row of the chunk, so one without a label must be zeros.
    if label < 0:
        tl.store(loss + row, 0.0)
        tl.store(at, tl.zeros((WIDTH,), logits.dtype.element_ty), mask=inside)
        return
    # Columns past V count as exp(-inf) = 0 in the sums.
    value = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(value, 0)
    p = tl.exp(value - peak)
    mass = tl.sum(p, 0)
    # The label's logit is in registers of one thread: a masked sum brings it to all without another load.
    chosen = tl.sum(tl.where(cols == label, value, 0.0), 0)
    tl.store(loss + row, tl.log(mass) + peak - chosen)
    grad = p / mass - tl.where(cols == label, 1.0, 0.0)
    tl.store(at, grad.to(logits.dtype.element_ty), mask=inside)
