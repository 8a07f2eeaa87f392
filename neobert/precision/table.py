"""Table of recipes, by the values of `trainer.mixed_precision`."""

from __future__ import annotations

from functools import partial

from neobert.config.schema import RunConfig
from neobert.precision.libraries import enabled_conversion
from neobert.precision.recipe import BF16, FP32, Recipe, call_shards_function, convert_by_library

RECIPES: dict[str, Recipe] = {"bf16": BF16, "fp32": FP32, "no": FP32}


def run_recipe(config: RunConfig) -> Recipe:
    """Return the recipe of `trainer.mixed_precision`, with the conversion of an enabled library."""
    base, conversion = RECIPES[config.trainer.mixed_precision], enabled_conversion(config)
    if conversion is None:
        return base
    base = base._replace(conversion=conversion, convert=partial(convert_by_library, conversion, config.seed))
    if not conversion.gathers_low_precision:
        return base
    return base._replace(
        before_sharding=partial(call_shards_function, "before_sharding", conversion),
        after_update=partial(call_shards_function, "after_update", conversion),
    )
