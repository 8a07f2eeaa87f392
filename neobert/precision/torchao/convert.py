"""Linear layers of torchao. Imports torch, and torchao when a layer is converted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from neobert.precision.torchao.section import TorchaoConfig
from neobert.precision.torchao.spec import TORCHAO


def convert_layer(section: TorchaoConfig, layer: nn.Linear, seed: int) -> nn.Module:
    """Return a torchao layer with the parameters of `layer`. Raises `ImportError` if torchao is missing."""
    recipe = section.recipe
    if recipe.startswith("float8"):
        return _float8(recipe, layer)
    if recipe == "nvfp4":
        from neobert.precision.torchao.nvfp4 import NVFP4Linear

        return NVFP4Linear.from_linear(layer, seed)
    from neobert.precision.torchao.mxfp8 import MXFP8Linear

    return MXFP8Linear.from_linear(
        layer,
        is_emulated=TORCHAO.recipes[recipe].is_emulated,
        has_bf16_weight_gradient=recipe.endswith("_wgrad_with_hp"),
    )


def _float8(recipe: str, layer: nn.Linear) -> nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe.removeprefix("float8_"))
    emulates = not torch.cuda.is_available()  # tests; a run without such a GPU is refused
    # Not `Float8Linear.from_float`: this function also works around a compiler that stores NaN in fp8.
    made: nn.Module = convert_to_float8_training(layer, config=replace(config, emulate=emulates))
    return made
