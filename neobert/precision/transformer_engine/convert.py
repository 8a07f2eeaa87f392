"""Linear layers of Transformer Engine. Imports torch, and Transformer Engine when a layer is converted.

Never run by this project: calls and state follow the source of Transformer Engine 2.20.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from neobert.precision.transformer_engine.section import TransformerEngineConfig

RECIPES = {
    "fp8_current": "Float8CurrentScaling",
    "fp8_block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
}


def convert_layer(section: TransformerEngineConfig, layer: nn.Linear, seed: int) -> nn.Module:  # noqa: ARG001
    """Return a layer of Transformer Engine with the parameters of `layer`.

    Raises `ImportError` if Transformer Engine is missing.
    """
    made = linear_class()(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        params_dtype=layer.weight.dtype,
        device="meta",  # its own parameters are replaced
    )
    made.weight = layer.weight
    if layer.bias is not None:
        made.bias = layer.bias
    made.recipe = build_recipe(section)
    trained: nn.Module = made.train(layer.training)
    return trained


@cache
def linear_class() -> type[Any]:
    """Return the class of the replacements, always the same: torch compiles blocks once per class."""
    from transformer_engine import pytorch as engine

    class Linear(engine.Linear):  # type: ignore[misc, unused-ignore]
        """A linear layer that computes in its recipe; its state dict equals `nn.Linear`'s.

        These recipes have no state, for which Transformer Engine writes an empty tensor into checkpoints.
        """

        recipe: Any
        get_extra_state = nn.Module.get_extra_state
        set_extra_state = nn.Module.set_extra_state

        def forward(self, values: Tensor) -> Tensor:
            with engine.autocast(enabled=True, recipe=self.recipe):
                product: Tensor = super().forward(values)
                return product

    return Linear


def build_recipe(section: TransformerEngineConfig) -> Any:
    """Build Transformer Engine's recipe object from the keys of a section."""
    from transformer_engine.common import recipe

    kind = getattr(recipe, RECIPES[section.recipe])
    if section.recipe == "nvfp4":
        return kind(
            disable_rht=section.disable_rht,
            disable_stochastic_rounding=section.disable_stochastic_rounding,
            disable_2d_quantization=section.disable_2d_quantization,
        )
    return kind() if section.fp8_format is None else kind(fp8_format=recipe.Format[section.fp8_format])
