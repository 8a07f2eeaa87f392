"""Batched orthogonalization by the Newton-Schulz iteration of `torch.optim.Muon` (arXiv:2502.16982).

torch has this iteration as a private function for one matrix, which 28 blocks would call 196 times per step.
Tests compare each matrix of a batch with torch's result.

Shapes: K matrices of R rows and C columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial; singular values converge to the range 0.68 to 1.2, not to one."""

EPS = 1e-7


def iteration_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype to iterate in: bf16 as `torch.optim.Muon` does, but fp32 on a CPU.

    A CPU without bf16 instructions multiplies bf16 matrices about 20 times more slowly. The dtype does not
    depend on the instructions, so that a resume on another CPU does not change the arithmetic.
    """
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def orthogonalize(matrices: Tensor, num_steps: int) -> Tensor:
    """Orthogonalize matrices [K, R, C] approximately, in their dtype.

    Singular values become about 1, zeros stay 0.
    Raises `ValueError` for fp16, in which small gradients underflow before they are orthogonalized.
    """
    if matrices.dtype == torch.float16:
        raise ValueError("Muon cannot orthogonalize fp16 matrices: train in fp32 or bf16")
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(num_steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def learning_rate_factor(adjust_lr_fn: str, num_rows: int, num_columns: int) -> float:
    """Return the factor by which a matrix shape scales the learning rate, as in `torch.optim.Muon`.

    `adjust_lr_fn`: "original" or "match_rms_adamw".
    """
    if adjust_lr_fn == "original":
        return math.sqrt(max(1.0, num_rows / num_columns))
    return 0.2 * math.sqrt(max(num_rows, num_columns))
