"""Matrix products of an encoder block, each with an epilogue of `neobert.kernels.epilogues`.

T tokens, D hidden size, I intermediate size; a weight is [N, D].

Weights are the copies made by `fold`: cast, multiplied by the weight (gain) of the preceding norm, and with
gate and up rows interleaved. RMSNorm followed by a matrix product can be written as norm(x) @ W.T = rstd *
(x @ (W * gain).T), so the product reads the residual stream directly and the norm needs no pass over it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from neobert.kernels.pointwise import next_power_of_two


class Tile(NamedTuple):
    """Tile configuration of a matrix product, with the names of quack's arguments."""

    tile_M: int  # noqa: N815
    tile_N: int  # noqa: N815
    cluster_M: int  # noqa: N815
    cluster_N: int  # noqa: N815
    pingpong: bool


TILES = {
    "qkv": Tile(128, 192, 1, 2, True),
    "out": Tile(128, 192, 2, 1, True),
    "up": Tile(128, 192, 2, 1, True),
    "down": Tile(128, 192, 2, 1, True),
    "down_gradient": Tile(128, 128, 2, 1, True),
    "up_gradient": Tile(128, 192, 1, 2, True),
    "qkv_gradient": Tile(128, 192, 1, 2, True),
}
"""Fastest of quack's configurations at T = 32,768, D = 768, I = 2,048 on an H200."""


def row_rstd(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean of squares + eps) of each row, float32 [T]."""
    return torch.rsqrt(x.float().square().mean(-1) + eps)


# Row sums come out of a product by column tile: a tile sees only its own columns of a row.
def _allocate_partials(x: Tensor, columns: int, tile: Tile) -> Tensor:
    return x.new_empty(x.shape[0], -(-columns // tile.tile_N), dtype=torch.float32)


def _finish_rstd(squares: Tensor, width: int, eps: float) -> Tensor:
    from neobert.kernels.jit.norm import finish_rstd

    rows, parts = squares.shape
    rstd = squares.new_empty(rows)
    finish_rstd[(-(-rows // 256),)](
        squares, rstd, rows, parts, width, eps, PARTS=max(2, next_power_of_two(parts)), ROWS=256
    )
    return rstd


def norm_gradient_factor(dots: Tensor, rstd: Tensor, width: int) -> Tensor:
    """Return the factor [T] of x in the norm's gradient, from partial row sums `dots` [T, parts].

    The partial sums are of gradient * value; `width` is D.
    """
    from neobert.kernels.jit.norm import norm_correction

    rows, parts = dots.shape
    # With y = x * rstd, the gradient of x is rstd * (g - y * mean(g * y)): this is the second term's factor.
    out = torch.empty_like(rstd)
    norm_correction[(-(-rows // 256),)](
        dots, rstd, out, rows, parts, dots.stride(0), dots.stride(1), width,
        PARTS=max(2, next_power_of_two(parts)), ROWS=256,
    )  # fmt: skip
    return out


def project_in(x: Tensor, rstd: Tensor, weight: Tensor, rotary: Tensor) -> Tensor:
    """Return the qkv projection of norm(x), with queries and keys rotated, [T, 3D]."""
    from neobert.kernels.epilogues import norm_rotate

    qkv = x.new_empty(x.shape[0], weight.shape[0])
    norm_rotate.gemm(
        x, weight, qkv, epi_args={"rstd": rstd[None], "rotary": rotary}, **TILES["qkv"]._asdict()
    )
    return qkv


def project_back(name: str, branch: Tensor, weight: Tensor, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + branch @ weight.T [T, D], and 1 / RMS of its rows [T]; `name` selects the tile."""
    from neobert.kernels.epilogues import residual_squares

    tile, out = TILES[name], torch.empty_like(x)
    squares = _allocate_partials(x, x.shape[1], tile)
    residual_squares.gemm(branch, weight, out, x, epi_args={"squares": squares}, **tile._asdict())
    return out, _finish_rstd(squares, x.shape[1], eps)


def project_gate_up(x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projection of norm(x) to gate and up, interleaved [T, 2I], and silu(gate) * up [T, I]."""
    from neobert.kernels.epilogues import norm_swiglu

    gate_up = x.new_empty(x.shape[0], weight.shape[0])
    activated = x.new_empty(x.shape[0], weight.shape[0] // 2)
    norm_swiglu.gemm(
        x, weight, gate_up, epi_args={"rstd": rstd[None], "activated": activated}, **TILES["up"]._asdict()
    )
    return gate_up, activated


def project_gate_up_gradient(
    grad: Tensor, weight: Tensor, gate_up: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return rstd * gradient of gate and up, interleaved [T, 2I], and partial row sums.

    `norm_gradient_factor` reads the sums.
    """
    from neobert.kernels.epilogues import swiglu_gradient

    # b_kn: this product reads the weight as it is stored, [K, N], and no transposed copy is made.
    tile, grad_gate_up = TILES["down_gradient"], torch.empty_like(gate_up)
    dots = _allocate_partials(grad, weight.shape[1], tile)
    inputs = {"rstd": rstd[None], "dots": dots}
    swiglu_gradient.gemm(grad, weight, grad_gate_up, gate_up, epi_args=inputs, b_kn=True, **tile._asdict())
    return grad_gate_up, dots


def stream_gradient(
    name: str, grad: Tensor, weight: Tensor, past: Tensor, x: Tensor, factor: Tensor
) -> Tensor:
    """Return the gradient of the residual stream, past + grad @ weight + x * factor, [T, D].

    grad is already scaled by rstd; factor [T] is the result of `norm_gradient_factor`; `name` selects the
    tile.
    """
    from neobert.kernels.epilogues import norm_gradient

    out = torch.empty_like(x)
    inputs = {"x": x, "correction": factor[None]}
    norm_gradient.gemm(grad, weight, out, past, epi_args=inputs, b_kn=True, **TILES[name]._asdict())
    return out


NUM_PARTIALS, ROWS = 264, 2
"""Number of programs of `unfold`, two per multiprocessor of a Hopper GPU, and of rows per load."""


def fold(weight: Tensor, gain: Tensor | None, dtype: torch.dtype, *, interleave: bool = False) -> Tensor:
    """Return weight [N, D] * gain [D] in dtype; with interleave, rows r and N / 2 + r become adjacent."""
    from neobert.kernels.jit.pointwise import fold_weight

    rows, size = weight.shape
    # One pass casts, scales and interleaves: three passes over a weight would show in a step of milliseconds.
    out = torch.empty((rows, size), dtype=dtype, device=weight.device)
    half = rows // 2 if interleave else 0
    fold_weight[(rows,)](
        weight, gain, out, D=size, WIDTH=next_power_of_two(size), HALF=half, HAS_GAIN=gain is not None
    )
    return out


def unfold(
    grad_folded: Tensor, weight: Tensor, gain: Tensor, partial: Tensor, *, interleave: bool = False
) -> Tensor:
    """Return the gradient of the weight [N, D], in its dtype, from the gradient of its folded copy.

    Writes partial sums of the gain's gradient to `partial` [P, D], float32, which `sum_partials` adds up.
    """
    from neobert.kernels.jit.pointwise import unfold_gradient

    rows, size = weight.shape
    # By the product rule: grad_weight = grad_folded * gain, and grad_gain sums grad_folded * weight over
    # rows.
    grad_weight = torch.empty_like(weight)
    half = rows // 2 if interleave else 0
    unfold_gradient[(partial.shape[0],)](
        grad_folded,
        weight,
        gain,
        grad_weight,
        partial,
        rows,
        D=size,
        WIDTH=next_power_of_two(size),
        HALF=half,
        ROWS=ROWS,
    )
    return grad_weight
