"""Construction of a run's model, with its initial weights, and of its task."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module

from neobert.adapters.lora import add_adapter, with_adapter
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import PreparedData
from neobert.families.backbone import Backbone, build_backbone
from neobert.parallel import World
from neobert.tasks.specs import spec_of
from neobert.tasks.weights import load_initial_weights, vocabulary_rows
from neobert.training.loop.task import Task

log = logging.getLogger(__name__)


def build_task(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Build the model, load its initial weights, and build the config's task over it.

    With `adapter.type`, the encoder is frozen and adapters are added.

    Args:
        is_fresh: initialize from `model.pretrained_checkpoint` or randomly; False for a resumed run, which
            loads its checkpoint afterwards.
        on_sign: called on progress while waiting for text.

    Raises `ProjectError` if tokenizer, weights or kernels are incompatible with the config.
    """
    backbone = _build_model(config, prepared, world, is_fresh=is_fresh)
    if config.adapter.type is not None:
        add_adapter(backbone, config)
    task: Task = import_module(f"{spec_of(config).keys.package}.task").build(
        config, prepared, world, backbone, on_sign=on_sign
    )
    return task if config.adapter.type is None else with_adapter(task, config)


def _build_model(config: RunConfig, prepared: PreparedData, world: World, *, is_fresh: bool) -> Backbone:
    spec, tokenizer = spec_of(config), prepared.tokenizer
    vocab_size = vocabulary_rows(config, tokenizer)
    settings = spec.model_settings(config)
    backbone = build_backbone(config, tokenizer, vocab_size, world, spec.auto_class, settings)
    num_parameters = sum(parameter.numel() for parameter in backbone.model.parameters())
    outputs = "" if backbone.head is None else f", {backbone.head.linear.out_features:,} outputs"
    log.info("model: %s parameters, %s tokens%s", f"{num_parameters:,}", f"{vocab_size:,}", outputs)
    if is_fresh:
        load_initial_weights(config, tokenizer, backbone)
    return backbone
