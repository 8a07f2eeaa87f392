"""Triton program of the cross-entropy: from logits to their gradient, in place.

Rows have V logits and are read in blocks of BLOCK; sums are computed in float32.
"""

import triton
import triton.language as tl


@triton.jit
def _load_logits(at, bias, cols, inside, softcap, HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr):
    """Load logits in float32, with bias and soft cap; -inf outside, which counts as 0 in the sums."""
    value = tl.load(at + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_SOFTCAP:
        value = softcap * (2.0 * tl.sigmoid(2.0 / softcap * value) - 1.0)  # softcap * tanh(value / softcap)
    return tl.where(inside, value, float("-inf"))


@triton.jit
def _update_max_and_sum(peak, mass, value):
    """Update the largest logit and the sum of exp(logit - largest) with one block of logits."""
    larger = tl.maximum(peak, tl.max(value, 0))
    return larger, mass * tl.exp(peak - larger) + tl.sum(tl.exp(value - larger), 0)


@triton.jit
def _logit_gradient(value, is_label, peak, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    # exp(value - peak) / mass, not exp(value - logsumexp): the rounding error of a large logsumexp would be
    # in the exponent.
    grad = scale * tl.exp(value - peak) - tl.where(is_label, 1.0, 0.0)
    if HAS_SOFTCAP:
        capped = tl.maximum(value / softcap, -1.0)  # finite outside too
        grad *= 1.0 - capped * capped
    return grad


@triton.jit
def cross_entropy_in_place(
    logits, bias, labels, loss, row_stride, z_loss, softcap,
    V: tl.constexpr, BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_Z_LOSS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Compute loss[m] = logsumexp - label's logit + z_loss * logsumexp^2; replace logits with its gradient.

    The gradient is softmax * (1 + 2 * z_loss * logsumexp) - one_hot; both are 0 for a negative label. With a
    soft cap, logits count as softcap * tanh(logit / softcap).
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    at = logits + row * row_stride
    cols = tl.arange(0, BLOCK)
    LAST: tl.constexpr = (V - 1) // BLOCK * BLOCK
    # The products that follow read every row of the chunk, so one without a label must be zeros.
    if label < 0:
        tl.store(loss + row, 0.0)
        for start in range(0, V, BLOCK):
            tl.store(at + start + cols, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=start + cols < V)
        return
    # Read before this program overwrites it. A label outside the vocabulary gives a loss of inf.
    chosen = _load_logits(at, bias, label, label < V, softcap, HAS_BIAS, HAS_SOFTCAP)
    peak, mass = float("-inf"), 0.0
    # Whole blocks have a mask without columns: next to one of an odd V, loads would be of single values.
    for start in range(0, LAST, BLOCK):
        value = _load_logits(at, bias, start + cols, cols < BLOCK, softcap, HAS_BIAS, HAS_SOFTCAP)
        peak, mass = _update_max_and_sum(peak, mass, value)
    # The last block stays in registers until its gradient is known: a row of one block is read once.
    value = _load_logits(at, bias, LAST + cols, LAST + cols < V, softcap, HAS_BIAS, HAS_SOFTCAP)
    peak, mass = _update_max_and_sum(peak, mass, value)
    normalizer = peak + tl.log(mass)
    scale = 1.0 / mass
    if HAS_Z_LOSS:
        tl.store(loss + row, normalizer - chosen + z_loss * normalizer * normalizer)
        scale *= 1.0 + 2.0 * z_loss * normalizer
    else:
        tl.store(loss + row, normalizer - chosen)
    grad = _logit_gradient(value, LAST + cols == label, peak, scale, softcap, HAS_SOFTCAP)
    tl.store(at + LAST + cols, grad.to(logits.dtype.element_ty), mask=LAST + cols < V)
    # Last read, first read again: those blocks are still in the L2 cache.
    for done in range(BLOCK, LAST + BLOCK, BLOCK):
        here = LAST - done + cols
        value = _load_logits(at, bias, here, cols < BLOCK, softcap, HAS_BIAS, HAS_SOFTCAP)
        grad = _logit_gradient(value, here == label, peak, scale, softcap, HAS_SOFTCAP)
        tl.store(at + here, grad.to(logits.dtype.element_ty))
