"""Rotary attention within packed segments: Triton kernels for short segments.

T packed tokens, S segments, H heads, E head size. qkv is the output of the fused projection, [T, 3 * H * E],
in the order [query, key, value] for each head. All layers of a microbatch share two tables: the cosines and
sines of each token (`rotary_table`) and the rows of each tile (`attention_tiles`). Several small programs
share a multiprocessor, so the loads of one tile overlap with the matrix products of another. FlashAttention's
single large program per multiprocessor cannot overlap them on segments of a few hundred rows. The backward
pass uses two programs (queries; keys and values) and no atomics, so it is deterministic.
"""

import math
from typing import Any

import torch
from torch import Tensor

from neobert.kernels.descriptors import block_descriptor, count_multiprocessors, supports_block_copies
from neobert.kernels.linear import weight_gradient
from neobert.kernels.operators import operator, register_fake


def attention_tiles(cu_seqlens: Tensor, total: int, block: int) -> Tensor:
    """Cut segments into tiles of at most `block` rows, longest segments first.

    cu_seqlens: [S + 1] integers; trailing entries may repeat. Rows after the last entry are treated as one
    more segment, so that the tiles cover all `total` rows. Returns int32 [3, total // block + S + 1]: first
    row of the tile, first row of its segment, end of its segment; unused tiles have first row = end. The
    shape depends only on `total`, `block` and S, not on the lengths of the segments.
    """
    # All on the device and in shapes that depend on shapes alone: no synchronization, and one compiled graph
    # for every packing. Unused slots become empty tiles, which end at once.
    begins = cu_seqlens.to(torch.int64)
    ends = torch.cat([begins[1:], begins.new_full((1,), total)])
    counts = (ends - begins + block - 1) // block
    last = counts.cumsum(0)
    num_tiles = total // block + cu_seqlens.numel()
    index = torch.arange(num_tiles, device=cu_seqlens.device)
    segment = torch.searchsorted(last, index, right=True).clamp_(max=counts.numel() - 1)
    begin, end = begins[segment], ends[segment]
    first = begin + (index - (last - counts)[segment]) * block
    used = index < last[-1]
    # Longest segments first: they take longest, and programs start in this order.
    order = torch.where(used, end - begin, -1).argsort(descending=True, stable=True)
    return torch.stack([torch.where(used, first, end), begin, end])[:, order].to(torch.int32).contiguous()


def rotary_table(
    position_ids: Tensor, head_dim: int, theta: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the (cos, sin) pairs of each token for queries, keys and values, [T, 3 * head_dim].

    position_ids: [T]. The pairs for queries and for keys have angles theta ** (-2k / head_dim) * position;
    the pairs for values are (1, 0), which leaves values unchanged.
    """
    exponent = torch.arange(0, head_dim, 2, device=position_ids.device, dtype=torch.float32) / head_dim
    angle = position_ids.to(torch.float32)[:, None] * theta**-exponent
    turn = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    # Values pass through the same epilogue as queries and keys; cos 1 and sin 0 leave them as they are.
    still = torch.stack([torch.ones_like(angle), torch.zeros_like(angle)], -1).flatten(1)
    return torch.cat([turn, turn, still], 1).to(dtype)


BLOCK = 64
"""Rows per tile: the argument `block` of `attention_tiles`."""

# The keys' program holds two sums, dk and dv: the limit of its registers lets more of them share a
# multiprocessor. Descriptors need no registers for addresses.
FORWARD = {"BLOCK_K": 64, "STAGES": 3, "num_warps": 4}
BACKWARD_QUERIES = {"BLOCK_K": 32, "STAGES": 3, "num_warps": 4}
BACKWARD_KEYS = {"BLOCK_Q": 32, "STAGES": 3, "num_warps": 4, "maxnreg": 168}
BACKWARD_KEYS_BY_BLOCK = {**BACKWARD_KEYS, "maxnreg": 128}


PRODUCT = {"M": 128, "K": 64, "STAGES": 3, "num_warps": 8}
"""Tile of the product with rotation, four head sizes wide; one program per multiprocessor."""


def _softmax_scales(head_dim: int) -> tuple[float, float]:
    scale = head_dim**-0.5
    # The programs use exp2: exp(x) is exp2(x / ln 2), and the division is done here once.
    return scale, scale / math.log(2.0)


def run_forward(qkv: Tensor, tiles: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
    """Attend within segments over rotated qkv; return out [T, H * E] and base-2 log-sum-exps [H, T]."""
    from neobert.kernels.jit.attention import attention_forward

    total, head_dim = qkv.shape[0], qkv.shape[1] // (3 * num_heads)
    out = torch.empty((total, num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((num_heads, total), dtype=torch.float32, device=qkv.device)
    # Tiles are sorted by length of segment, the longest first: short ones fill the gaps at the end.
    attention_forward[(tiles.shape[1] * num_heads,)](
        qkv, out, lse, tiles, total, tiles.shape[1], _softmax_scales(head_dim)[1],
        H=num_heads, E=head_dim, BLOCK_Q=BLOCK, **FORWARD,
    )  # fmt: skip
    return out, lse


def run_backward(
    grad_out: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    rotary: Tensor | None,
    tiles: Tensor,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of qkv before rotation, [T, 3 * H * E], and row sums if rstd is given, else None.

    Without rotary the gradient is not rotated back. With rstd [T], the rows of the gradient are scaled by
    rstd, and the sums of gradient * value over each head before scaling, [H, T], are also returned: the
    gradient of a norm folded into the product needs them.
    """
    from neobert.kernels.jit.attention import attention_backward_keys, attention_backward_queries

    num_heads, total = lse.shape
    head_dim, num_tiles = out.shape[1] // num_heads, tiles.shape[1]
    grad_qkv, stats = torch.empty_like(qkv), lse.new_empty(*lse.shape, 2)
    rowdot = None if rstd is None else torch.empty_like(lse)
    shared = {"H": num_heads, "E": head_dim, "FOLD_NORM": rstd is not None, "ROTATES": rotary is not None}
    tail = (stats, rowdot, rstd, rotary, grad_qkv, tiles, total, num_tiles, *_softmax_scales(head_dim))
    grid = (num_tiles * num_heads,)
    attention_backward_queries[grid](
        qkv, out, grad_out, lse, *tail, BLOCK_Q=BLOCK, **shared, **BACKWARD_QUERIES
    )
    sources, by_block, options = (qkv, grad_out), supports_block_copies(qkv), BACKWARD_KEYS
    if by_block:
        sources = tuple(block_descriptor(each, BACKWARD_KEYS["BLOCK_Q"], head_dim) for each in sources)
        options = BACKWARD_KEYS_BY_BLOCK
    attention_backward_keys[grid](qkv, *sources, *tail, BLOCK_K=BLOCK, BY_BLOCK=by_block, **shared, **options)
    return grad_qkv, rowdot


def project(x: Tensor, weight: Tensor, rotary: Tensor, num_heads: int) -> Tensor:
    """Return qkv = x @ weight.T [T, 3 * H * E], with queries and keys rotated."""
    if not supports_block_copies(x):
        return rotate(x @ weight.t(), rotary, num_heads)
    from neobert.kernels.jit.products import rotated_heads

    (total, size), width, head_dim = x.shape, len(weight), len(weight) // (3 * num_heads)
    qkv, m, k = x.new_empty(total, width), PRODUCT["M"], PRODUCT["K"]
    columns = -(-width // (4 * head_dim))
    rotated_heads[(min(count_multiprocessors(x), -(-total // m) * columns),)](
        block_descriptor(x, m, k), block_descriptor(weight, 4 * head_dim, k),
        block_descriptor(rotary, m, head_dim), block_descriptor(qkv, m, head_dim), total,
        D=size, COLUMNS=columns, E=head_dim, **PRODUCT,
    )  # fmt: skip
    return qkv


def rotate(qkv: Tensor, rotary: Tensor, num_heads: int, *, sign: int = 1) -> Tensor:
    """Rotate queries and keys of qkv [T, 3 * H * E] in place by `sign` times `rotary`; return qkv."""
    from neobert.kernels.jit.pointwise import rotate_heads

    total, head_dim = qkv.shape[0], qkv.shape[1] // (3 * num_heads)
    rows = 8
    rotate_heads[(-(-total // rows), num_heads)](
        qkv, rotary, total, SIGN=sign, H=num_heads, E=head_dim, ROWS=rows
    )
    return qkv


@operator
def _rotary_attention(
    x: Tensor, weight: Tensor, rotary: Tensor, tiles: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    # Rotated once, ahead of the kernel: within it every tile of queries would rotate all keys again.
    qkv = project(x, weight, rotary, num_heads)
    return *run_forward(qkv, tiles, num_heads), qkv


@register_fake(_rotary_attention)
def _rotary_attention_fake(
    x: Tensor, weight: Tensor, rotary: Tensor, tiles: Tensor, num_heads: int
) -> tuple[Tensor, ...]:
    return fake_results(x, weight, num_heads)


def fake_results(x: Tensor, weight: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return uninitialized (out, lse, rotated qkv) of attention over x [T, D] and weight [3 * H * E, D]."""
    total, width = x.shape[0], weight.shape[0]
    return (
        x.new_empty(total, width // 3),
        x.new_empty(num_heads, total, dtype=torch.float32),
        x.new_empty(total, width),
    )


@operator
def _rotary_attention_backward(
    grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, rotary: Tensor, tiles: Tensor
) -> Tensor:
    return run_backward(grad_out.contiguous(), qkv, out, lse, rotary, tiles)[0]


@register_fake(_rotary_attention_backward)
def _rotary_attention_backward_fake(grad_out: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv)


class _RotaryAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rotary: Tensor, tiles: Tensor, num_heads: int) -> Tensor:
        low = weight.to(x.dtype)
        out, lse, qkv = _rotary_attention(x, low, rotary, tiles, num_heads)
        ctx.save_for_backward(x, low, qkv, out, lse, rotary, tiles)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, low, *rest = ctx.saved_tensors
        # The gradient comes rotated back: it is that of the product.
        grad = _rotary_attention_backward(grad_out, *rest)
        return grad @ low, weight_gradient(grad, x), None, None, None


def rotary_attention(x: Tensor, weight: Tensor, rotary: Tensor, tiles: Tensor, num_heads: int) -> Tensor:
    """Project x [T, D] to qkv, rotate queries and keys, and attend within segments; return [T, H * E].

    weight: [3 * H * E, D]. rotary: result of `rotary_table`. tiles: result of `attention_tiles`.
    """
    result: Tensor = _RotaryAttention.apply(x, weight, rotary, tiles, num_heads)
    return result
