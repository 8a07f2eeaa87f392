"""Recipes are the values of the key."""

from __future__ import annotations

from typing import get_args, get_type_hints

from neobert.config.schema import TrainerConfig
from neobert.precision.table import RECIPES


def test_every_value_of_the_key_has_a_recipe():
    values = get_args(get_type_hints(TrainerConfig, include_extras=True)["mixed_precision"])
    assert set(RECIPES) == set(values)
