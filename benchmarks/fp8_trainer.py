"""`own_trainer.py` with the rounding of fp8 in the products of the blocks, without its speed.

    python benchmarks/fp8_trainer.py (arguments of own_trainer.py)

Both operands of the three products of a linear layer are rounded: values and weights to e4m3, gradients to
e5m2. A tensor has one scale, a power of two, from its largest magnitude one step earlier, with room for twice
that; what is still larger becomes the largest number. So would a kernel do that rounds where it writes. A
number in fp8 is exact in bf16: the products here are those of fp8 with sums in fp32.
"""

from __future__ import annotations

from typing import Any

import own_trainer
import torch
from torch import Tensor

from neobert.families.backbone import Backbone
from neobert.precision.conversion import linears_of
from neobert.precision.like_linear import LikeLinear
from neobert.precision.table import RECIPES

ROOM = 2.0
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def rounded(values: Tensor, largest: Tensor, kind: torch.dtype) -> Tensor:
    """Return values rounded to a type, by the magnitude in `largest` [], which gets theirs; 0 if unknown."""
    own = values.abs().amax().float()
    earlier = torch.where(largest > 0, largest, own).clamp_min(1e-12)
    largest.copy_(own)
    limit = torch.finfo(kind).max
    scale = torch.exp2(torch.floor(torch.log2(limit / ROOM / earlier)))
    return (values * scale).clamp(-limit, limit).to(kind).to(values.dtype) / scale


class RoundedProduct(torch.autograd.Function):
    """Product [..., K] x [N, K] -> [..., N], and its gradients, of rounded operands."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, largest: Tensor) -> Tensor:
        """`largest` [3]: earlier magnitudes of values, weight and gradient."""
        values, weight = rounded(values, largest[0], FORWARD), rounded(weight, largest[1], FORWARD)
        ctx.save_for_backward(values, weight)
        ctx.largest = largest
        return values @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        values, weight = ctx.saved_tensors
        grad = rounded(grad, ctx.largest[2], BACKWARD)
        return grad @ weight, grad.flatten(0, -2).t() @ values.flatten(0, -2), None


class RoundedLinear(LikeLinear):
    """A linear layer whose products have operands in fp8 in training; evaluation is that of what is saved."""

    largest: Tensor

    def product(self, values: Tensor, weight: Tensor) -> Tensor:
        if not self.training:
            return values @ weight.t()
        return RoundedProduct.apply(values, weight, self.largest)


def round_products(backbone: Backbone) -> None:
    """Replace all linear layers of the blocks."""
    for block in backbone.blocks:
        for name, layer in [*linears_of(block, backbone)]:
            made = RoundedLinear.sharing(layer)
            made.register_buffer("largest", torch.zeros(3, device=layer.weight.device), persistent=False)
            block.set_submodule(name, made)


def main() -> None:
    """Train as `own_trainer` does, with converted blocks: its only difference."""
    RECIPES.update({name: recipe._replace(convert=round_products) for name, recipe in RECIPES.items()})
    own_trainer.main()


if __name__ == "__main__":
    main()
