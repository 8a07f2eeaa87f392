"""Triton programs of matrix products with SwiGLU and its gradient in their epilogues.

T packed tokens, D hidden size, I intermediate size. Matrices are read and written through tensor descriptors:
what a block has beyond the end of a matrix is read as zeros, and not stored.
"""

import triton
import triton.language as tl


@triton.jit
def _halves(x, M: tl.constexpr, N: tl.constexpr):
    """Return the left and the right half of x [M, N]."""
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


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
    opened, factor = _halves(acc, M, 2 * N)
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
    grad, weight, gate, up, grad_gate, grad_up,
    D: tl.constexpr, COLUMNS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of gate and up [T, I] from grad [T, D] and the down projection [D, I].

    Descriptors have blocks of [M, K], [K, N] and four times [M, N // 4]. COLUMNS: programs per M rows.
    """
    # Neighbouring programs share the rows of grad; the whole weight stays in the cache.
    row, col = tl.program_id(0) // COLUMNS * M, tl.program_id(0) % COLUMNS * N
    acc = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, D, K, num_stages=STAGES):
        acc = tl.dot(grad.load([row, k]), weight.load([k, col]), acc)
    # In quarters: gate, up and their gradients of the whole block would not fit the registers.
    left, right = _halves(acc, M, N)
    first, second = _halves(left, M, N // 2)
    third, fourth = _halves(right, M, N // 2)
    _store_gradients(first, gate, up, grad_gate, grad_up, row, col)
    _store_gradients(second, gate, up, grad_gate, grad_up, row, col + N // 4)
    _store_gradients(third, gate, up, grad_gate, grad_up, row, col + N // 2)
    _store_gradients(fourth, gate, up, grad_gate, grad_up, row, col + N // 4 * 3)
