"""The compute copy of a weight.

Cast, with the preceding norm's weight multiplied in and gate and up rows interleaved.

RMSNorm's row scale commutes with the product that follows and its weight belongs to that product's columns:
norm(x) @ W.T = rstd * (x @ (W * gain).T). So the product reads the residual stream itself and the norm costs
no pass. N rows, D columns of a weight.
"""

import torch
from torch import Tensor

from neobert.kernels.tiles import power_of_two

NUM_PARTIALS, ROWS = 264, 2
"""Programs that unfold a gradient, two per multiprocessor of a Hopper card; rows each takes at a time."""


def fold(weight: Tensor, gain: Tensor | None, dtype: torch.dtype, *, interleave: bool = False) -> Tensor:
    """Return weight [N, D] * gain [D] in dtype; with interleave, rows r and N / 2 + r become neighbours."""
    from neobert.kernels.jit.pointwise import fold_weight

    rows, size = weight.shape
    # One pass casts, scales and interleaves: three passes over a weight would show in a step of milliseconds.
    out = torch.empty((rows, size), dtype=dtype, device=weight.device)
    half = rows // 2 if interleave else 0
    fold_weight[(rows,)](
        weight, gain, out, D=size, WIDTH=power_of_two(size), HALF=half, HAS_GAIN=gain is not None
    )
    return out


def unfold(
    grad_folded: Tensor, weight: Tensor, gain: Tensor, partial: Tensor, *, interleave: bool = False
) -> Tensor:
    """Return the gradient of the weight [N, D], in its dtype, from that of its folded copy.

    The gain's gradient is left as partial sums in partial [P, D], float32, so that a block can finish both
    norms at once.
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
        WIDTH=power_of_two(size),
        HALF=half,
        ROWS=ROWS,
    )
    return grad_weight


def finish_gains(partials: Tensor, gains: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum partials [2, P, D] into the gradients of two gains [D], each in its gain's dtype."""
    from neobert.kernels.jit.pointwise import sum_partials

    _, parts, size = partials.shape
    grads = (torch.empty_like(gains[0]), torch.empty_like(gains[1]))
    # Partial sums instead of atomics, so that the gradients of the gains repeat to the last bit.
    columns = 32
    sum_partials[(2, -(-size // columns))](partials, *grads, parts, D=size, COLS=columns, ROWS=64)
    return grads
