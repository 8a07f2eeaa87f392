"""Triton programs with row reductions: RMSNorm with residual addition.

Rows have D values; statistics are computed in float32.
"""

import triton
import triton.language as tl


@triton.jit
def hash_bits(value):
    """Hash uint32 values to 16 random bits each, by the finalizer of MurmurHash3."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value >> 16


@triton.jit
def round_to_bf16(value, noise):
    """Round float32 values to bfloat16: away from zero if adding `noise` (16 bits) to their bits carries."""
    bits = value.to(tl.uint32, bitcast=True)
    rounded = ((bits + noise) & 0xFFFF0000).to(tl.float32, bitcast=True)
    # NaN is kept: the addition could overflow its bits to -0.
    return tl.where(value == value, rounded, value).to(tl.bfloat16)


@triton.jit
def add_norm_forward(
    x, branch, weight, out, normed, rstd, num_rows, eps,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HAS_BRANCH: tl.constexpr,
):  # fmt: skip
    """Compute out = x + branch and normed = out / rms(out) * weight.

    Without a branch, x is normalized and out is not written.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDTH)
    inside = (rows < num_rows)[:, None] & (cols < D)[None, :]
    at = rows.to(tl.int64)[:, None] * D + cols[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        value += tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
        # The norm is taken of the rounded sum, which the backward pass reads again.
        stored = value.to(out.dtype.element_ty)
        tl.store(out + at, stored, mask=inside)
        value = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / D + eps)
    gain = tl.load(weight + cols, mask=cols < D, other=0.0).to(tl.float32)
    result = value * scale[:, None] * gain[None, :]
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)
    tl.store(rstd + rows, scale, mask=rows < num_rows)


@triton.jit
def add_norm_backward(
    grad_normed, grad_out, out, weight, rstd, grad_x, partial, num_rows,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HAS_BRANCH: tl.constexpr,
):  # fmt: skip
    """Compute grad_x (the gradient of branch too) and a partial sum per program of the weight gradient.

    A grad_x in bfloat16 is rounded stochastically, alike for equal inputs.
    """
    cols = tl.arange(0, WIDTH)
    column_noise = hash_bits(cols.to(tl.uint32))
    gain = tl.load(weight + cols, mask=cols < D, other=0.0).to(tl.float32)
    # A fixed number of programs strides over the rows, so that the partial sums of the weight's gradient are
    # few, and their order does not depend on which program is first.
    weight_sum = tl.zeros((WIDTH,), tl.float32)
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < num_rows)[:, None] & (cols < D)[None, :]
        at = rows.to(tl.int64)[:, None] * D + cols[None, :]
        grad = tl.load(grad_normed + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + rows, mask=rows < num_rows, other=0.0)[:, None]
        unit = tl.load(out + at, mask=inside, other=0.0).to(tl.float32) * scale
        weight_sum += tl.sum(grad * unit, 0)
        grad = grad * gain[None, :]
        result = scale * (grad - unit * (tl.sum(grad * unit, 1) / D)[:, None])
        if HAS_BRANCH:
            result += tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        # Tokens without a loss have nearly equal gradients. Rounded to nearest, their errors are equal too
        # and add up: at initial weights the gradients of early layers erred by 3.4 %, and so by 0.8 %.
        if grad_x.dtype.element_ty == tl.bfloat16:
            # A hash for each element took half as long again (H200). Rows need independent noise, columns do
            # not: gradients are summed over rows.
            row_noise = hash_bits(
                rows.to(tl.uint32)[:, None] * 0x9E3779B1 ^ scale.to(tl.uint32, bitcast=True)
            )
            result = round_to_bf16(result, row_noise ^ column_noise[None, :])
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(partial + tl.program_id(0) * D + cols, weight_sum, mask=cols < D)


@triton.jit
def norm_correction(
    dots, rstd, out, num_rows, parts, row_stride, part_stride, width, PARTS: tl.constexpr, ROWS: tl.constexpr
):
    """Compute out[m] = -rstd[m]^2 / width * sum(dots[m, :]).

    This is the factor of the norm's input in the norm's gradient.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, PARTS)
    inside = (rows < num_rows)[:, None] & (cols < parts)[None, :]
    values = tl.load(dots + rows[:, None] * row_stride + cols[None, :] * part_stride, mask=inside, other=0.0)
    scale = tl.load(rstd + rows, mask=rows < num_rows, other=0.0)
    tl.store(out + rows, -scale * scale / width * tl.sum(values, 1), mask=rows < num_rows)


@triton.jit
def finish_rstd(squares, rstd, num_rows, parts, width, eps, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """Compute rstd[m] = 1 / sqrt(sum(squares[m, :]) / width + eps)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, PARTS)
    inside = (rows < num_rows)[:, None] & (cols < parts)[None, :]
    values = tl.load(squares + rows[:, None] * parts + cols[None, :], mask=inside, other=0.0)
    tl.store(rstd + rows, tl.rsqrt(tl.sum(values, 1) / width + eps), mask=rows < num_rows)
