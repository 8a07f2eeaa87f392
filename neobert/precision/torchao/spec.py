"""Table of torchao's recipes, and the layers that they convert. Imports no torch.

Requirements of the hardware are those of torchao 0.18 and of `torch._scaled_mm`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from neobert.config.schema import TorchaoConfig
from neobert.families.shape import ModelShape
from neobert.precision.bf16 import BF16
from neobert.precision.recipe import Recipe, converting

PACKAGE = "torchao"
INSTALL = "pip install 'torchao>=0.18'"
CONVERSION = "neobert.precision.torchao.convert"
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
ADA, HOPPER, BLACKWELL = ((8, 9), (99, 0)), ((9, 0), (99, 0)), ((10, 0), (11, 0))
EVERY = ((0, 0), (99, 0))


class TorchaoRecipe(NamedTuple):
    """Requirements of one recipe.

    Attributes:
        products: torch's names of the types of its matrix products.
        capabilities: compute capability of the GPUs with its products, from the first to below the second.
        multiple: divisor of the features of a layer, and of the tokens of a microbatch.
    """

    products: frozenset[str]
    capabilities: tuple[tuple[int, int], tuple[int, int]]
    multiple: int

    @property
    def is_emulated(self) -> bool:
        """Return whether it has the rounding of low precision, and not its speed."""
        return self.capabilities == EVERY

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Return whether a GPU has its products."""
        least, beyond = self.capabilities
        return not self.is_emulated and least <= capability < beyond


RECIPES: dict[str, TorchaoRecipe] = {
    "float8_rowwise": TorchaoRecipe(FLOAT8, HOPPER, 16),
    "float8_tensorwise": TorchaoRecipe(FLOAT8, ADA, 16),
    "float8_rowwise_with_gw_hp": TorchaoRecipe(FLOAT8, HOPPER, 16),
    "mxfp8_rceil": TorchaoRecipe(FLOAT8, BLACKWELL, 32),
    "mxfp8_rceil_wgrad_with_hp": TorchaoRecipe(FLOAT8, BLACKWELL, 32),
    "mxfp8_emulated": TorchaoRecipe(frozenset({BF16.dtype}), EVERY, 32),
}


class Layer(NamedTuple):
    """Linear layer of a block: number of the block, name in the block, and features."""

    block: int
    name: str
    inputs: int
    outputs: int


def below(base: Recipe, section: TorchaoConfig) -> Recipe:
    """Return a precision with some products below it."""
    products = RECIPES[section.recipe].products
    return base._replace(low_products=products, convert=partial(converting, CONVERSION, section))


def convertible(section: TorchaoConfig, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers, given in the order in which they run, that the section converts."""
    ends = {id(layers[0]), id(layers[-1])} if section.skip_first_last_linear and layers else set()
    return [
        each
        for each in layers
        if id(each) not in ends and not any(text in each.name for text in section.filter_fqns)
    ]


def layers_of(shape: ModelShape) -> Iterator[Layer]:
    """Yield the linear layers of all blocks of a model, in order."""
    for block in range(shape.num_layers):
        for name, (inputs, outputs, _) in shape.linear_layers.items():
            yield Layer(block, name, inputs, outputs)
