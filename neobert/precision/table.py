"""Table of recipes, by the values of `trainer.mixed_precision`."""

from __future__ import annotations

from functools import partial

from neobert.config.schema import RunConfig
from neobert.precision.libraries import conversion_of
from neobert.precision.recipe import BF16, FP32, Recipe, converting, sharding

RECIPES: dict[str, Recipe] = {"bf16": BF16, "fp32": FP32, "no": FP32}


def recipe_of(config: RunConfig) -> Recipe:
    """Return the recipe of a run."""
    base, conversion = RECIPES[config.trainer.mixed_precision], conversion_of(config)
    if conversion is None:
        return base
    base = base._replace(conversion=conversion, convert=partial(converting, conversion, config.seed))
    if not conversion.gathers_low:
        return base
    return base._replace(
        before_sharding=partial(sharding, "before_sharding", conversion),
        after_update=partial(sharding, "after_update", conversion),
    )
