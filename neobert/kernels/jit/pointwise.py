"""Triton programs for rotation, SwiGLU, and folding a norm's weight into the following matrix."""

import triton
import triton.language as tl


@triton.jit
def _load_angles(rotary, rows, inside, E: tl.constexpr):
    """Load cosines and sines of rows [ROWS, 1], each [ROWS, 1, E // 2]; queries and keys have the same."""
    half = tl.arange(0, E // 2)[None, :]
    at = rotary + rows * (3 * E) + 2 * half
    cos = tl.load(at, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    sin = tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)[:, None, :]
    return cos, sin


@triton.jit
def rotate_heads(
    qkv, rotary, total, SIGN: tl.constexpr, H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr
):
    """Rotate queries and keys of qkv [T, H, 3, E] in place by SIGN times their angles.

    Pairs are interleaved, (2k, 2k + 1).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (rows < total)[:, None]
    wide = rows.to(tl.int64)[:, None]
    cos, sin = _load_angles(rotary, wide, inside, E)
    sin *= SIGN
    head = tl.program_id(1)
    # Queries and keys of a head are neighbours in a row and turn by the same angles: one pass for both.
    both = tl.arange(0, 2)[None, :, None]
    at = qkv + wide[:, :, None] * (3 * H * E) + head * 3 * E + both * E + tl.arange(0, E)[None, None, :]
    pairs = tl.reshape(tl.load(at, mask=inside[:, :, None], other=0.0).to(tl.float32), (ROWS, 2, E // 2, 2))
    even, odd = tl.split(pairs)
    turned = tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (ROWS, 2, E))
    tl.store(at, turned.to(qkv.dtype.element_ty), mask=inside[:, :, None])


@triton.jit
def finish_attention_gradient(
    qkv, grad_qkv, rstd, rotary, rowdot, total, H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rotate the gradients of queries and keys in grad_qkv back, and scale all its rows by rstd, in place.

    Also writes rowdot[h, t] = sum(grad_qkv * qkv) over the channels of query, key and value of head h,
    before scaling; qkv is rotated.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    inside = (rows < total)[:, None]
    wide = rows.to(tl.int64)[:, None]
    cos, sin = _load_angles(rotary, wide, inside, E)
    scale = tl.load(rstd + rows, mask=rows < total, other=0.0)
    at = (
        wide[:, :, None] * (3 * H * E)
        + head * 3 * E
        + tl.arange(0, 2)[None, :, None] * E
        + tl.arange(0, E)[None, None, :]
    )
    # Before the rotation back: the sums of gradient * value do not change under it, and value is rotated.
    grad = tl.load(grad_qkv + at, mask=inside[:, :, None], other=0.0).to(tl.float32)
    value = tl.load(qkv + at, mask=inside[:, :, None], other=0.0).to(tl.float32)
    dots = tl.sum(tl.sum(grad * value, 2), 1)
    even, odd = tl.split(tl.reshape(grad * scale[:, None, None], (ROWS, 2, E // 2, 2)))
    turned = tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), (ROWS, 2, E))
    tl.store(grad_qkv + at, turned.to(grad_qkv.dtype.element_ty), mask=inside[:, :, None])
    values = wide * (3 * H * E) + head * 3 * E + 2 * E + tl.arange(0, E)[None, :]
    grad_v = tl.load(grad_qkv + values, mask=inside, other=0.0).to(tl.float32)
    dots += tl.sum(grad_v * tl.load(qkv + values, mask=inside, other=0.0).to(tl.float32), 1)
    tl.store(grad_qkv + values, (grad_v * scale[:, None]).to(grad_qkv.dtype.element_ty), mask=inside)
    tl.store(rowdot + head * total + rows, dots, mask=rows < total)


@triton.jit
def swiglu_forward(gate_up, out, numel, I: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    """Compute out = silu(gate) * up [T, I] of gate_up [T, 2I], which has gate in its first I columns."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    source = at // I * (2 * I) + at % I
    gate = tl.load(gate_up + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + source + I, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward(gate_up, grad_out, grad_gate_up, numel, I: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    """Compute the gradient of gate_up from the gradient of `swiglu_forward`'s result."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    # Gate and up are halves of one row of the fused product: element at of [T, I] is at row at // I of both.
    source = at // I * (2 * I) + at % I
    gate = tl.load(gate_up + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + source + I, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    silu = gate * open_
    slope = open_ * (1 + gate * (1 - open_))
    tl.store(grad_gate_up + source, (grad * up * slope).to(grad_gate_up.dtype.element_ty), mask=inside)
    tl.store(grad_gate_up + source + I, (grad * silu).to(grad_gate_up.dtype.element_ty), mask=inside)


@triton.jit
def fold_weight(
    weight, gain, out, D: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, HAS_GAIN: tl.constexpr
):
    """Compute out = weight * gain in out's dtype.

    With HALF > 0, row r of the first half becomes row 2r, and row r of the second half row 2r + 1.
    """
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, WIDTH)
    value = tl.load(weight + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
    if HAS_GAIN:
        value *= tl.load(gain + cols, mask=cols < D, other=0.0).to(tl.float32)
    # Interleaved, gate and up of a channel are neighbouring columns of the product: one epilogue then holds
    # both in the registers of a thread and can compute SwiGLU before anything is stored.
    goal = row
    if HALF > 0:
        goal = (row % HALF) * 2 + row // HALF
    tl.store(out + goal * D + cols, value.to(out.dtype.element_ty), mask=cols < D)


@triton.jit
def unfold_gradient(
    grad_folded, weight, gain, grad_weight, partial, num_rows,
    D: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of weight and gain from the gradient of the output of `fold_weight`.

    grad_weight = grad_folded * gain; partial has sums of grad_folded * weight, one row per program.
    """
    cols = tl.arange(0, WIDTH)[None, :]
    scale = tl.load(gain + cols, mask=cols < D, other=0.0).to(tl.float32)
    gain_sum = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (start + tl.arange(0, ROWS))[:, None]
        inside = (rows < num_rows) & (cols < D)
        source = rows
        if HALF > 0:
            source = (rows % HALF) * 2 + rows // HALF
        grad = tl.load(grad_folded + source * D + cols, mask=inside, other=0.0).to(tl.float32)
        gain_sum += grad * tl.load(weight + rows * D + cols, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_weight + rows * D + cols, (grad * scale).to(grad_weight.dtype.element_ty), mask=inside)
    total = tl.sum(gain_sum, 0)
    tl.store(partial + tl.program_id(0) * D + tl.arange(0, WIDTH), total, mask=tl.arange(0, WIDTH) < D)


@triton.jit
def sum_partials(partials, sums, parts, D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    """Compute sums[n] = sum(partials[n], 0) of partials [N, parts, D]."""
    which = tl.program_id(0)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, parts, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < parts)[:, None] & (cols < D)[None, :]
        total += tl.load(
            partials + (which * parts + rows)[:, None] * D + cols[None, :], mask=inside, other=0.0
        )
    tl.store(sums + which * D + cols, tl.sum(total, 0), mask=cols < D)
