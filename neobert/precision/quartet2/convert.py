"""Linear layers of Quartet-II. Imports torch, and Quartet-II when a layer is converted.

Never run by this project: the calls follow the source of `quartet2.linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neobert.precision.like_linear import LinearReplacement
from neobert.precision.quartet2.section import Quartet2Config


class QuartetLinear(LinearReplacement):
    """A linear layer whose products Quartet-II computes, from bf16 weights and values.

    Attributes:
        kernel: Quartet-II's layer, in a tuple, so that its state is not saved.
    """

    kernel: tuple[Any]

    def product(self, values: Tensor, weight: Tensor) -> Tensor:
        """Return Quartet-II's product of values and weight, both converted to bf16."""
        (kernel,) = self.kernel
        kernel.weight = weight.to(torch.bfloat16)
        rows = values.to(torch.bfloat16).reshape(1, -1, values.shape[-1])
        product: Tensor = kernel(rows)
        return product.reshape(*values.shape[:-1], -1)


def convert_layer(section: Quartet2Config, layer: nn.Linear, seed: int) -> nn.Module:  # noqa: ARG001
    """Return a layer of Quartet-II with the parameters of `layer`.

    Raises `ImportError` if Quartet-II is missing.
    """
    from quartet2.linear import Quartet_II_linear

    device = layer.weight.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # it draws weights, which are discarded
        kernel = Quartet_II_linear(
            layer.in_features,
            layer.out_features,
            bias=False,
            four_over_six=section.four_over_six,
            device=device,
            dtype=torch.bfloat16,
        )
    del kernel.weight  # from its parameters: `product` sets a copy of the trained one
    made = QuartetLinear.with_parameters_of(layer)
    made.kernel = (kernel,)
    return made
