"""Linear layer whose product a library computes, with the parameters of the layer that it replaces."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn


class LinearReplacement(nn.Linear):
    """A linear layer [..., K] -> [..., N] with parameters in fp32 and a product in the type of autocast.

    Its state dict equals `nn.Linear`'s: a checkpoint does not depend on the library.
    """

    @classmethod
    def with_parameters_of(cls, layer: nn.Linear) -> Self:
        """Return a layer with the parameters of `layer`; draws no random numbers."""
        with torch.device("meta"):
            made = cls(layer.in_features, layer.out_features, layer.bias is not None)
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, values: Tensor) -> Tensor:
        """Return product plus bias, in the autocast dtype, or in the dtype of `values` without autocast."""
        kind = values.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
        with torch.autocast(kind, enabled=False):
            product = self.product(values.to(dtype).contiguous(), self.weight.to(dtype))
            return product if self.bias is None else product + self.bias.to(dtype)

    def product(self, values: Tensor, weight: Tensor) -> Tensor:
        """Return the product of contiguous values [..., K] with a weight [N, K] of the same dtype."""
        raise NotImplementedError
