"""Triton programs of matrix products with rotation, SwiGLU and its gradient in their epilogues.

T packed tokens, D hidden size, H heads, E head size, I intermediate size. Matrices are read and written
through tensor descriptors: what a block has beyond the end of a matrix is read as zeros, and not stored.
"""

import triton
import triton.language as tl


@triton.jit
def _split_halves(x, M: tl.constexpr, N: tl.constexpr):
    """Return the left and the right half of x [M, N]."""
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def _store_head(acc, cos, sin, qkv, row, col, M: tl.constexpr, E: tl.constexpr):
    """Store the queries, keys or values of a head, acc [M, E]; queries and keys are rotated."""
    if col // E % 3 < 2:
        even, odd = tl.split(tl.reshape(acc, (M, E // 2, 2)))
        acc = tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (M, E))
    qkv.store([row, col], acc.to(qkv.dtype))


@triton.jit
def rotated_heads(
    x, weight, angles, qkv, total,
    D: tl.constexpr, COLUMNS: tl.constexpr, E: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute qkv [T, H, 3, E] of x [T, D] by a weight [3HE, D], and rotate queries and keys.

    Descriptors have blocks of [M, K], [4E, K] and twice [M, E]. Pairs are interleaved, as are the cosines and
    sines in the first E columns of `angles`. COLUMNS: tiles per M rows.
    """
    # One program takes several tiles: it stores one while it loads the next.
    for tile in tl.range(tl.program_id(0), tl.cdiv(total, M) * COLUMNS, tl.num_programs(0), flatten=True):
        row, col = tile // COLUMNS * M, tile % COLUMNS * 4 * E
        acc = tl.zeros((M, 4 * E), tl.float32)
        for k in tl.range(0, D, K, num_stages=STAGES):
            acc = tl.dot(x.load([row, k]), tl.trans(weight.load([col, k])), acc)
        left, right = _split_halves(acc, M, 4 * E)
        first, second = _split_halves(left, M, 2 * E)
        third, fourth = _split_halves(right, M, 2 * E)
        # Zero times the product gives the angles its layout: otherwise all of it would be moved to theirs.
        table = tl.fma(first, 0.0, angles.load([row, 0]))
        cos, sin = tl.split(tl.reshape(table, (M, E // 2, 2)))
        _store_head(first, cos, sin, qkv, row, col, M, E)
        _store_head(second, cos, sin, qkv, row, col + E, M, E)
        _store_head(third, cos, sin, qkv, row, col + 2 * E, M, E)
        _store_head(fourth, cos, sin, qkv, row, col + 3 * E, M, E)


@triton.jit
def gate(
    x, weight, gate, up, activated,
    D: tl.constexpr, COLUMNS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute gate and up [T, I] of x [T, D] by a weight [2, I, D], and silu(gate) * up.

    Descriptors have blocks of [M, K], [2, N, K] and three times [M, N]. COLUMNS: programs per M rows.
    """
    row, col = tl.program_id(0) // COLUMNS * M, tl.program_id(0) % COLUMNS * N
    acc = tl.zeros((M, 2 * N), tl.float32)
    for k in tl.range(0, D, K, num_stages=STAGES):
        # One product for both: the rows of gate and of up are two layers of one block of the weight.
        both = tl.reshape(weight.load([0, col, k]), (2 * N, K))
        acc = tl.dot(x.load([row, k]), tl.trans(both), acc)
    opened, factor = _split_halves(acc, M, 2 * N)
    low_gate, low_up = opened.to(gate.dtype), factor.to(up.dtype)
    gate.store([row, col], low_gate)
    up.store([row, col], low_up)
    # Of the rounded values, which the backward pass reads.
    opened, factor = low_gate.to(tl.float32), low_up.to(tl.float32)
    activated.store([row, col], (opened * tl.sigmoid(opened) * factor).to(activated.dtype))


@triton.jit
def _store_gradients(grad, gate, up, grad_gate, grad_up, row, col):
    """Store the gradients of gate and up for a block of the activation's gradient."""
    opened = gate.load([row, col]).to(tl.float32)
    share = tl.sigmoid(opened)
    slope = share * (1 + opened * (1 - share))
    factor = up.load([row, col]).to(tl.float32)
    grad_gate.store([row, col], (grad * factor * slope).to(grad_gate.dtype))
    grad_up.store([row, col], (grad * opened * share).to(grad_up.dtype))


@triton.jit
def gate_gradient(
    grad, weight, gate, up, grad_gate, grad_up, total,
    D: tl.constexpr, COLUMNS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of gate and up [T, I] from grad [T, D] and the down projection [D, I].

    Descriptors have blocks of [M, K], [K, N] and four times [M, N // 4]. COLUMNS: tiles per M rows.
    """
    # Neighbouring programs share the rows of grad; the whole weight stays in the cache.
    for tile in tl.range(tl.program_id(0), tl.cdiv(total, M) * COLUMNS, tl.num_programs(0), flatten=True):
        row, col = tile // COLUMNS * M, tile % COLUMNS * N
        acc = tl.zeros((M, N), tl.float32)
        for k in tl.range(0, D, K, num_stages=STAGES):
            acc = tl.dot(grad.load([row, k]), weight.load([k, col]), acc)
        # In quarters: gate, up and their gradients of the whole block would not fit the registers.
        left, right = _split_halves(acc, M, N)
        first, second = _split_halves(left, M, N // 2)
        third, fourth = _split_halves(right, M, N // 2)
        _store_gradients(first, gate, up, grad_gate, grad_up, row, col)
        _store_gradients(second, gate, up, grad_gate, grad_up, row, col + N // 4)
        _store_gradients(third, gate, up, grad_gate, grad_up, row, col + N // 2)
        _store_gradients(fourth, gate, up, grad_gate, grad_up, row, col + N // 4 * 3)
