"""Triton programs for attention inside packed segments.

T packed tokens, H heads, E head size. Queries, keys and values arrive as the rows of one fused product, [T, H, 3, E],
already rotated; gradients leave in the same layout, rotated back. A tile is a run of rows of one segment; the table of
tiles is [3, num_tiles] int32: first row, first row of its segment, end of its segment (an empty tile has first row >= end).
Log-sum-exps are kept in base 2, [H, T].
"""

import triton
import triton.language as tl


@triton.jit
def _tile(tiles, num_tiles, H: tl.constexpr):
    pid = tl.program_id(0)
    tile = pid // H
    first = tl.load(tiles + tile)
    begin = tl.load(tiles + num_tiles + tile)
    end = tl.load(tiles + 2 * num_tiles + tile)
    return pid % H, first, begin, end


@triton.jit
def _rows(base, rows, total, stride, E: tl.constexpr):
    """Load whole rows; an index past the buffer reads its last row, which a mask elsewhere keeps out of the sums."""
    safe = tl.minimum(rows, total - 1).to(tl.int64)
    return tl.load(base + safe[:, None] * stride + tl.arange(0, E)[None, :])


@triton.jit
def _rotate_back(grad, rotary, rows, total, BLOCK: tl.constexpr, E: tl.constexpr):
    """Turn each interleaved pair back by its position's angle: the transpose of the forward rotation."""
    safe = tl.minimum(rows, total - 1).to(tl.int64)
    half = tl.arange(0, E // 2)
    cos = tl.load(rotary + safe[:, None] * (3 * E) + 2 * half[None, :]).to(tl.float32)
    sin = tl.load(rotary + safe[:, None] * (3 * E) + 2 * half[None, :] + 1).to(tl.float32)
    even, odd = tl.split(tl.reshape(grad, (BLOCK, E // 2, 2)))
    return tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), (BLOCK, E))


@triton.jit
def attention_forward(
    qkv, out, lse, tiles, total, num_tiles, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    head, first, begin, end = _tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    rows = first + tl.arange(0, BLOCK_Q)
    q = _rows(base, rows, total, stride, E)
    peak = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, E), tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK_K)
        k = _rows(base + E, cols, total, stride, E)
        v = _rows(base + 2 * E, cols, total, stride, E)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        scores = tl.where(cols[None, :] < end, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp2(scores - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        mass = mass * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        peak = new_peak
    inside = rows < end
    wide = rows.to(tl.int64)
    result = acc / mass[:, None]
    tl.store(
        out + wide[:, None] * (H * E) + head * E + tl.arange(0, E)[None, :],
        result.to(out.dtype.element_ty),
        mask=inside[:, None],
    )
    tl.store(lse + head * total + rows, peak + tl.log2(mass), mask=inside)


@triton.jit
def attention_backward_queries(
    qkv, out, grad_out, lse, delta, rowdot, rstd, rotary, grad_qkv, tiles, total, num_tiles, scale, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    FOLD_NORM: tl.constexpr,
):  # fmt: skip
    """Gradient of the queries of one tile; leaves delta = sum(out * grad_out) for the keys' program."""
    head, first, begin, end = _tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    rows = first + tl.arange(0, BLOCK_Q)
    inside = rows < end
    q = _rows(base, rows, total, stride, E)
    do = _rows(grad_out + head * E, rows, total, H * E, E)
    o = _rows(out + head * E, rows, total, H * E, E)
    row_delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta + head * total + rows, row_delta, mask=inside)
    row_lse = tl.load(lse + head * total + rows, mask=inside, other=0.0)
    dq = tl.zeros((BLOCK_Q, E), tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK_K)
        k = _rows(base + E, cols, total, stride, E)
        v = _rows(base + 2 * E, cols, total, stride, E)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        p = tl.where(cols[None, :] < end, tl.exp2(scores - row_lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - row_delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    dq = dq * scale
    if FOLD_NORM:
        tl.store(rowdot + head * total + rows, tl.sum(dq * q.to(tl.float32), 1), mask=inside)
        dq = dq * tl.load(rstd + rows, mask=inside, other=0.0)[:, None]
    dq = _rotate_back(dq, rotary, rows, total, BLOCK_Q, E)
    wide = rows.to(tl.int64)
    tl.store(
        grad_qkv + head * 3 * E + wide[:, None] * stride + tl.arange(0, E)[None, :],
        dq.to(grad_qkv.dtype.element_ty),
        mask=inside[:, None],
    )


@triton.jit
def attention_backward_keys(
    qkv, grad_out, lse, delta, rowdot, rstd, rotary, grad_qkv, tiles, total, num_tiles, scale, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    FOLD_NORM: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys and values of one tile. Rows past the segment meet an infinite log-sum-exp: weight zero."""
    head, first, begin, end = _tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    cols = first + tl.arange(0, BLOCK_K)
    inside = cols < end
    k = _rows(base + E, cols, total, stride, E)
    v = _rows(base + 2 * E, cols, total, stride, E)
    dk = tl.zeros((BLOCK_K, E), tl.float32)
    dv = tl.zeros((BLOCK_K, E), tl.float32)
    for start in tl.range(begin, end, BLOCK_Q, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_Q)
        valid = rows < end
        q = _rows(base, rows, total, stride, E)
        do = _rows(grad_out + head * E, rows, total, H * E, E)
        row_lse = tl.load(lse + head * total + rows, mask=valid, other=float("inf"))
        row_delta = tl.load(delta + head * total + rows, mask=valid, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * scale_log2 - row_lse[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv)
        dp = tl.dot(v, tl.trans(do))
        ds = p * (dp - row_delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    dk = dk * scale
    if FOLD_NORM:
        dots = tl.sum(dk * k.to(tl.float32) + dv * v.to(tl.float32), 1)
        dots += tl.load(rowdot + head * total + cols, mask=inside, other=0.0)
        tl.store(rowdot + head * total + cols, dots, mask=inside)
        by = tl.load(rstd + cols, mask=inside, other=0.0)[:, None]
        dk = dk * by
        dv = dv * by
    dk = _rotate_back(dk, rotary, cols, total, BLOCK_K, E)
    target = grad_qkv + head * 3 * E + cols.to(tl.int64)[:, None] * stride + tl.arange(0, E)[None, :]
    tl.store(target + E, dk.to(grad_qkv.dtype.element_ty), mask=inside[:, None])
    tl.store(target + 2 * E, dv.to(grad_qkv.dtype.element_ty), mask=inside[:, None])
