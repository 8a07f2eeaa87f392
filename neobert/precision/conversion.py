"""Conversion of the blocks' linear layers by the library that a run enables. Imports torch.

Converted layers keep their parameters, under the same names: checkpoints do not depend on the library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module

from torch import nn

from neobert.data.batches.stateless_random import stream_key
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.backbone import Backbone
from neobert.precision.library import Conversion, LinearLayer

log = logging.getLogger(__name__)

_ROUNDING_STREAM = 0x726F756E


def convert(conversion: Conversion, seed: int, backbone: Backbone) -> None:
    """Replace the blocks' linear layers in place, except layers that the section excludes.

    `seed`: seed of the run, from which each layer gets its own. Raises `ProjectError` PRE008 if all layers
    are excluded, HST001 if the library cannot be imported.
    """
    found = {
        LinearLayer(number, name, module.in_features, module.out_features): (block, name, module)
        for number, block in enumerate(backbone.blocks)
        for name, module in linear_layers_in_order(block, backbone)
    }
    chosen = [found[layer] for layer in conversion.select_layers(list(found))]
    if not chosen:
        message = f"{conversion.name} converts none of {len(found)} linear layers of the blocks"
        hint = f"shorten {conversion.key('filter_fqns')}, or {conversion.disable_hint}"
        raise ProjectError("PRE008", message, hint)
    for number, (block, name, module) in enumerate(chosen):
        layer_seed = stream_key(_ROUNDING_STREAM, seed, number)
        block.set_submodule(name, convert_layer(conversion, module, layer_seed))
    log.info("%s: %d of %d linear layers of the blocks", conversion.name, len(chosen), len(found))


def convert_layer(conversion: Conversion, layer: nn.Linear, seed: int) -> nn.Module:
    """Return the library's replacement of a layer, with the parameters of the layer.

    Raises `ProjectError` HST001 if the library cannot be imported.
    """
    library = conversion.library
    module = import_module(f"{__package__}.{library.name}.convert")
    try:
        made: nn.Module = module.convert_layer(conversion.section, layer, seed)
    except ImportError as error:
        message = f"{library.name} is enabled, but the package {library.package} cannot be imported: {error}"
        raise ProjectError("HST001", message, library.install, exit_code=EXIT_USAGE) from error
    return made


def linear_layers_in_order(block: nn.Module, backbone: Backbone) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers of a block in the order in which they run, not of definition."""
    modules = dict(block.named_modules())
    for name in (weight.removesuffix(".weight") for weight in backbone.matrix_layouts):
        if isinstance(module := modules.get(name), nn.Linear):
            yield name, module
