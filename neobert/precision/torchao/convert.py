"""Conversion of the blocks' linear layers by torchao. Imports torch.

Converted layers keep their parameters, under the same names: checkpoints do not depend on the section.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from neobert.config.schema import TorchaoConfig
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.backbone import Backbone
from neobert.precision.torchao.spec import INSTALL, RECIPES, Layer, convertible

log = logging.getLogger(__name__)


def convert(section: TorchaoConfig, backbone: Backbone) -> None:
    """Replace the linear layers that the section names, in place, before anything holds one of them.

    Raises `ProjectError` PRE007 if none is left, and without torchao.
    """
    found = {
        Layer(number, name, module.in_features, module.out_features): (block, name, module)
        for number, block in enumerate(backbone.blocks)
        for name, module in linears_of(block, backbone)
    }
    chosen = [found[layer] for layer in convertible(section, list(found))]
    if not chosen:
        message = f"torchao.{section.recipe} converts none of {len(found)} linear layers"
        raise ProjectError("PRE008", message, "remove torchao.filter_fqns", "torchao.filter_fqns")
    for block, name, module in chosen:
        block.set_submodule(name, _converted(section.recipe, module))
    log.info("%s: %d of %d linear layers of the blocks", section.recipe, len(chosen), len(found))


def linears_of(block: nn.Module, backbone: Backbone) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers of a block in the order in which they run, which is not that of definition."""
    modules = dict(block.named_modules())
    for name in (weight.removesuffix(".weight") for weight in backbone.matrix_layouts):
        if isinstance(module := modules.get(name), nn.Linear):
            yield name, module


def _converted(recipe: str, layer: nn.Linear) -> nn.Module:
    """Return the layer of torchao with the parameters of a layer."""
    try:
        return _float8(recipe, layer) if recipe.startswith("float8") else _mxfp8(recipe, layer)
    except ImportError as error:
        message = "torchao is enabled, but the package torchao is not installed"
        raise ProjectError("PRE010", message, INSTALL, exit_code=EXIT_USAGE) from error


def _float8(recipe: str, layer: nn.Linear) -> nn.Module:
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    config = Float8LinearConfig.from_recipe_name(recipe.removeprefix("float8_"))
    emulates = not torch.cuda.is_available()  # tests; a run without such a GPU is refused
    made: nn.Module = Float8Linear.from_float(layer, replace(config, emulate=emulates))
    return made


def _mxfp8(recipe: str, layer: nn.Linear) -> nn.Module:
    from neobert.precision.torchao.mxfp8 import MXFP8Linear

    return MXFP8Linear.of(
        layer,
        is_emulated=RECIPES[recipe].is_emulated,
        has_bf16_weight_gradient=recipe.endswith("_wgrad_with_hp"),
    )
