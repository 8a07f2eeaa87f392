"""Recipes are the values of the key."""

import re
from typing import get_args, get_type_hints

import pytest

from neobert.config.schema import TrainerConfig
from neobert.plan import build_plan
from neobert.plan.hardware import assumptions_for
from neobert.precision.libraries import LIBRARIES
from neobert.precision.table import RECIPES
from profiles.registry import resolve_run


def test_every_value_of_the_key_has_a_recipe():
    values = get_args(get_type_hints(TrainerConfig, include_extras=True)["mixed_precision"])
    assert set(RECIPES) == set(values)


@pytest.mark.parametrize(
    ("recipe", "gpu", "rate"),
    [("float8_rowwise", "H200", 2), ("nvfp4", "B200", 4), ("mxfp8_emulated", "H200", None)],
)
def test_the_plan_says_how_much_a_recipe_gains_at_most(recipe, gpu, rate):
    """NeoBERT: 28 blocks with 7,077,888 weights, of which 110 of 112 layers are converted."""
    overrides = ["model.kernel_backend=auto", "torchao.enable=true", f"torchao.recipe={recipe}"]
    config = resolve_run("h200-prod", [], overrides).config
    plan = build_plan(config, assumptions_for(gpu, None, 0.4))
    text = plan.low_precision.value
    found = re.search(r"110 of 112 linear layers(?:, at most ([\d.]+) times as fast)?", text)
    assert found
    if rate is None:
        assert found[1] is None
    else:
        products = 6 * (28 * 7_077_888 - 3 * 768 * 768 - 2048 * 768)
        faster = plan.flops_per_token.value - products * (1 - 1 / rate)
        assert float(found[1]) == pytest.approx(plan.flops_per_token.value / faster, abs=0.01)


@pytest.mark.parametrize(("recipe", "gpu"), [("float8_rowwise", "A100"), ("mxfp8_rceil", "H100")])
def test_the_plan_promises_nothing_on_a_gpu_without_the_products(recipe, gpu):
    overrides = ["model.kernel_backend=auto", "torchao.enable=true", f"torchao.recipe={recipe}"]
    config = resolve_run("h100-prod", [], overrides).config
    text = build_plan(config, assumptions_for(gpu, None, 0.4)).low_precision.value
    assert f"110 of 112 linear layers, not supported on {gpu}" in text
    assert "times as fast" not in text


@pytest.mark.parametrize("gpu", ["H100", "B200"])
def test_the_plan_says_which_recipes_were_never_run(gpu):
    """On the GPUs that this project has, two."""
    run = {"torchao": {"float8_rowwise", "float8_tensorwise", "mxfp8_emulated"}}
    for section, library in LIBRARIES.items():
        for recipe in library.recipes:
            overrides = ["model.kernel_backend=auto", f"{section}.enable=true", f"{section}.recipe={recipe}"]
            config = resolve_run("h100-prod", [], overrides).config
            text = build_plan(config, assumptions_for(gpu, None, 0.4)).low_precision.value
            assert ("never run by this project" in text) == (recipe not in run.get(section, ())), recipe
