"""Table of recipes, by the values of `trainer.mixed_precision`."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.precision.bf16 import BF16
from neobert.precision.fp32 import FP32
from neobert.precision.recipe import Recipe
from neobert.precision.torchao import spec as torchao

RECIPES: dict[str, Recipe] = {"bf16": BF16, "fp32": FP32, "no": FP32}


def recipe_of(config: RunConfig) -> Recipe:
    """Return the recipe of a run."""
    base = RECIPES[config.trainer.mixed_precision]
    return torchao.below(base, config.torchao) if config.torchao.enable else base
