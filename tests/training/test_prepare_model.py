"""The order in which a model is made ready to train."""

import json

from neobert.config import from_dict
from neobert.data.store.prepare import prepare
from neobert.parallel import World
from neobert.precision.recipe import FP32
from neobert.training import prepare_model as module

STEPS = ("build_model", "load_initial_weights", "convert", "compile_objective", "prepare", "build_optimizer")


def test_a_recipe_converts_loaded_weights_before_anything_holds_them(make_run, monkeypatch):
    config = from_dict(json.loads((make_run() / "resolved.json").read_text()))
    calls = []

    def noted(name, function):
        def call(*arguments, **named):
            calls.append(name)
            return function(*arguments, **named)

        return call

    world = World(FP32._replace(convert=noted("convert", FP32.convert)))
    for name in STEPS:
        owner = World if name == "prepare" else module
        if name != "convert":
            monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    module.prepare_model(config, prepare(config), world, is_fresh=True)
    assert tuple(calls) == STEPS
