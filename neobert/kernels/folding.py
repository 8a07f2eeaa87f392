"""The compute copy of a weight: cast, with the preceding norm's weight multiplied in and gate and up rows interleaved.

RMSNorm's row scale commutes with the product that follows and its weight belongs to that product's columns:
norm(x) @ W.T = rstd * (x @ (W * gain).T). So the product reads the residual stream itself and the norm costs no pass.
N rows, D columns of a weight.
"""

import torch
from torch import Tensor

NUM_PARTIALS, ROWS = 264, 2


def _width(size: int) -> int:
    return 1 << (size - 1).bit_length()


def fold(weight: Tensor, gain: Tensor | None, dtype: torch.dtype, *, interleave: bool = False) -> Tensor:
    """Return weight [N, D] * gain [D] in dtype; with interleave, rows r and N / 2 + r become neighbours."""
    from neobert.kernels.jit.pointwise import fold_weight

    rows, size = weight.shape
    out = torch.empty((rows, size), dtype=dtype, device=weight.device)
    half = rows // 2 if interleave else 0
    fold_weight[(rows,)](weight, gain, out, D=size, WIDTH=_width(size), HALF=half, HAS_GAIN=gain is not None)
    return out


def unfold(grad_folded: Tensor, weight: Tensor, gain: Tensor, *, interleave: bool = False) -> tuple[Tensor, Tensor]:
    """Turn the gradient of a folded weight into those of the weight [N, D] and the gain [D], each in its own dtype."""
    from neobert.kernels.jit.pointwise import unfold_gradient

    rows, size = weight.shape
    grad_weight = torch.empty_like(weight)
    programs = min(NUM_PARTIALS, -(-rows // ROWS))
    partial = torch.empty((programs, size), dtype=torch.float32, device=weight.device)
    half = rows // 2 if interleave else 0
    unfold_gradient[(programs,)](
        grad_folded, weight, gain, grad_weight, partial, rows, D=size, WIDTH=_width(size), HALF=half, ROWS=ROWS
    )
    return grad_weight, partial.sum(0).to(gain.dtype)
