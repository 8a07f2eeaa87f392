"""Triton programs for attention within packed segments.

T packed tokens, H heads, E head size. Inputs are rotated queries, keys and values in one tensor [T, H, 3, E];
gradients have the same layout and are rotated back. A tile is a range of rows of one segment; the table of
tiles is int32 [3, num_tiles]: first row, first row of its segment, end of its segment (an empty tile has
first row >= end). Log-sum-exps are in base 2, [H, T].
"""

import triton
import triton.language as tl


@triton.jit
def _load_tile(tiles, num_tiles, H: tl.constexpr):
    pid = tl.program_id(0)
    # Heads of one tile have neighbouring numbers, so that they run together and share lines of the cache:
    # a row of the fused product holds all heads.
    tile = pid // H
    first = tl.load(tiles + tile)
    begin = tl.load(tiles + num_tiles + tile)
    end = tl.load(tiles + 2 * num_tiles + tile)
    return pid % H, first, begin, end


@triton.jit
def _load_rows(base, start, total, stride: tl.constexpr, BLOCK: tl.constexpr, E: tl.constexpr):
    """Load BLOCK rows from row `start` on.

    Rows after the end of the buffer are zeros; rows after the end of the segment are not masked.
    """
    local = tl.arange(0, BLOCK)[:, None]
    at = local * stride + tl.arange(0, E)[None, :]
    # Offsets within a block fit 32 bits; that of the block itself, rows x 3 H E, does not for long runs.
    wide = tl.full((), 0, tl.int64) + start
    return tl.load(base + wide * stride + at, mask=start + local < total, other=0.0)


@triton.jit
def _rotate_back(grad, rotary, rows, total, BLOCK: tl.constexpr, E: tl.constexpr):
    """Rotate interleaved pairs by the negative angle of their position (transpose of the rotation)."""
    # Rows past the buffer read the last angle: their gradient is not stored.
    wide = tl.minimum(rows, total - 1).to(tl.int64)
    table = tl.load(rotary + wide[:, None] * (3 * E) + tl.arange(0, E)[None, :]).to(tl.float32)
    cos, sin = tl.split(tl.reshape(table, (BLOCK, E // 2, 2)))
    even, odd = tl.split(tl.reshape(grad, (BLOCK, E // 2, 2)))
    return tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), (BLOCK, E))


@triton.jit
def attention_forward(
    qkv, out, lse, tiles, total, num_tiles, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute attention output and log-sum-exps for one tile of queries."""
    head, first, begin, end = _load_tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    rows = first + tl.arange(0, BLOCK_Q)
    q = _load_rows(base, first, total, stride, BLOCK_Q, E)
    # Online softmax: the largest score so far, the sum of exponentials and the weighted values, rescaled
    # when a larger score comes. Base 2, because exp2 is one instruction and the factor is part of the scale.
    peak = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    mass = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, E), tl.float32)
    # Only the keys of the tile's own segment are read: packing adds no work across documents.
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        k = _load_rows(base + E, start, total, stride, BLOCK_K, E)
        v = _load_rows(base + 2 * E, start, total, stride, BLOCK_K, E)
        scores = tl.dot(q, tl.trans(k))
        # The last block of keys may reach into the next segment. Without this line it would leak.
        scores = tl.where((start + tl.arange(0, BLOCK_K) < end)[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale_log2)
        p = tl.exp2(scores * scale_log2 - new_peak[:, None])
        # exp2(-inf) is 0 for the first block. No row is all -inf: it attends at least to itself.
        fade = tl.exp2(peak - new_peak)
        mass = mass * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        peak = new_peak
    inside = rows < end
    result = acc / mass[:, None]
    at = tl.arange(0, BLOCK_Q)[:, None] * (H * E) + tl.arange(0, E)[None, :]
    target = out + first.to(tl.int64) * (H * E) + head * E
    tl.store(target + at, result.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(lse + head * total + rows, peak + tl.log2(mass), mask=inside)


@triton.jit
def attention_backward_queries(
    qkv, out, grad_out, lse, stats, rowdot, rstd, rotary, grad_qkv, tiles, total, num_tiles,
    scale, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    FOLD_NORM: tl.constexpr, ROTATES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the queries of one tile.

    Also writes (lse, delta = sum(out * grad_out)) per row for `attention_backward_keys`.
    """
    head, first, begin, end = _load_tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    rows = first + tl.arange(0, BLOCK_Q)
    inside = rows < end
    q = _load_rows(base, first, total, stride, BLOCK_Q, E)
    do = _load_rows(grad_out + head * E, first, total, H * E, BLOCK_Q, E)
    o = _load_rows(out + head * E, first, total, H * E, BLOCK_Q, E)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    row_lse = tl.load(lse + head * total + rows, mask=inside, other=0.0)
    # The keys' program needs both by row: next to each other they are one load there.
    pair = stats + (head * total + rows)[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(pair, tl.join(row_lse, delta), mask=inside[:, None])
    dq = tl.zeros((BLOCK_Q, E), tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        k = _load_rows(base + E, start, total, stride, BLOCK_K, E)
        v = _load_rows(base + 2 * E, start, total, stride, BLOCK_K, E)
        scores = tl.dot(q, tl.trans(k))
        dp = tl.dot(do, tl.trans(v))
        p = tl.exp2(scores * scale_log2 - row_lse[:, None])
        p = tl.where((start + tl.arange(0, BLOCK_K) < end)[None, :], p, 0.0)
        # Gradient of the softmax: delta is the sum of p * dp over all keys of the row, which equals
        # sum(out * grad_out) and so needs no pass of its own.
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    dq = dq * scale
    # A norm folded into the product (`folding`) needs the row sums of gradient * value and the gradient
    # scaled by its rstd; both are available here. Rotation keeps the sums, so rotated values serve.
    if FOLD_NORM:
        tl.store(rowdot + head * total + rows, tl.sum(dq * q.to(tl.float32), 1), mask=inside)
        dq = dq * tl.load(rstd + rows, mask=inside, other=0.0)[:, None]
    if ROTATES:
        dq = _rotate_back(dq, rotary, rows, total, BLOCK_Q, E)
    at = tl.arange(0, BLOCK_Q)[:, None] * stride + tl.arange(0, E)[None, :]
    target = grad_qkv + first.to(tl.int64) * stride + head * 3 * E
    tl.store(target + at, dq.to(grad_qkv.dtype.element_ty), mask=inside[:, None])


@triton.jit
def attention_backward_keys(
    qkv, queries, grads, stats, rowdot, rstd, rotary, grad_qkv, tiles, total, num_tiles,
    scale, scale_log2,
    H: tl.constexpr, E: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    FOLD_NORM: tl.constexpr, ROTATES: tl.constexpr, BY_BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys and values of one tile.

    queries and grads: qkv [T, 3 * H * E] and the output's gradient [T, H * E]; BY_BLOCK: their descriptors,
    for blocks of [BLOCK_Q, E].
    Queries after the end of the segment get an infinite log-sum-exp, so that their weights are zero.
    """
    head, first, begin, end = _load_tile(tiles, num_tiles, H)
    if first >= end:
        return
    stride: tl.constexpr = 3 * H * E
    base = qkv + head * 3 * E
    # Keys have a program of their own: each row of dk and dv has one writer, so no atomics are needed and the
    # sums have a fixed order. The price is that scores are computed once more.
    cols = first + tl.arange(0, BLOCK_K)
    inside = cols < end
    k = _load_rows(base + E, first, total, stride, BLOCK_K, E)
    v = _load_rows(base + 2 * E, first, total, stride, BLOCK_K, E)
    dk = tl.zeros((BLOCK_K, E), tl.float32)
    dv = tl.zeros((BLOCK_K, E), tl.float32)
    for start in tl.range(begin, end, BLOCK_Q, num_stages=STAGES):
        if BY_BLOCK:
            q = queries.load([start, head * 3 * E])
            do = grads.load([start, head * E])
        else:
            q = _load_rows(queries + head * 3 * E, start, total, stride, BLOCK_Q, E)
            do = _load_rows(grads + head * E, start, total, H * E, BLOCK_Q, E)
        # One load of both columns: a load of either would be repeated by every thread that needs it.
        row_lse, delta = tl.split(_load_rows(stats + head * total * 2, start, total, 2, BLOCK_Q, 2))
        # Rows of the next segment: exp2(score - inf) is 0, so they give these keys nothing.
        row_lse = tl.where(start + tl.arange(0, BLOCK_Q) < end, row_lse, float("inf"))
        scores = tl.dot(k, tl.trans(q))
        dp = tl.dot(v, tl.trans(do))
        p = tl.exp2(scores * scale_log2 - row_lse[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    dk = dk * scale
    if FOLD_NORM:
        dots = tl.sum(dk * k.to(tl.float32) + dv * v.to(tl.float32), 1)
        # The queries' program has run: its sum is completed, in this stream's order.
        dots += tl.load(rowdot + head * total + cols, mask=inside, other=0.0)
        tl.store(rowdot + head * total + cols, dots, mask=inside)
        by = tl.load(rstd + cols, mask=inside, other=0.0)[:, None]
        dk = dk * by
        dv = dv * by
    if ROTATES:
        dk = _rotate_back(dk, rotary, cols, total, BLOCK_K, E)
    at = tl.arange(0, BLOCK_K)[:, None] * stride + tl.arange(0, E)[None, :]
    target = grad_qkv + first.to(tl.int64) * stride + head * 3 * E
    tl.store(target + E + at, dk.to(grad_qkv.dtype.element_ty), mask=inside[:, None])
    tl.store(target + 2 * E + at, dv.to(grad_qkv.dtype.element_ty), mask=inside[:, None])
