"""Linear layer in nvfp4, through torchao's matrix product. Imports torch and torchao.

torchao's `NVFP4Linear` keeps a random seed and random signs in buffers that are saved with the weights, and
differ on each rank. Here both follow from the seed of the run, and are not saved. The rounding of gradients
draws from the device's generator, whose state checkpoints contain. Never run by this project.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear

from neobert.precision.like_linear import LinearReplacement

SIGNS = 16
"""Length of the sign vector of the random Hadamard transform."""


class NVFP4Linear(LinearReplacement):
    """A linear layer that computes its output and both gradients in nvfp4, with one scale per 16 values."""

    signs: tuple[int, ...]

    @classmethod
    def from_linear(cls, layer: nn.Linear, seed: int) -> NVFP4Linear:
        """Return a layer with the parameters of `layer`; `seed` decides its signs and its rounding."""
        made = cls.with_parameters_of(layer)
        made.signs = tuple(1 if seed >> bit & 1 else -1 for bit in range(SIGNS))
        rounding = torch.tensor([seed % 2**63], dtype=torch.int64, device=layer.weight.device)
        made.register_buffer("rounding_seed", rounding, persistent=False)
        return made

    def product(self, values: Tensor, weight: Tensor) -> Tensor:
        """Return the product in nvfp4, with gradients in nvfp4."""
        product: Tensor = nvfp4_linear(values, weight, sr_seed=self.rounding_seed, sign_vector=self.signs)
        return product
