"""Preparation of a model for training: build, load, convert, compile, shard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from neobert.adapters.lora import add_adapter, with_adapter
from neobert.config.schema import RunConfig
from neobert.data.batches.stateless_random import stream_key
from neobert.data.store.contents import score_statistics
from neobert.data.store.prepared_data import PreparedData
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.families.backbone import Backbone, build_backbone
from neobert.families.hf.saved_tokenizer import refuse_other_tokenizer
from neobert.families.table import model_shape
from neobert.objectives.compile import compile_objective
from neobert.optim import build_optimizer
from neobert.parallel import World
from neobert.plan.kernels import exchange_overlaps
from neobert.plan.memory import choose_resharding
from neobert.plan.sharding import gathers_copies
from neobert.plugins.task import with_plugins
from neobert.tasks.specs import spec_of
from neobert.tasks.weights import load_initial_weights, match_scores, num_embedding_rows
from neobert.training.loop.task import Task, TaskInputs

log = logging.getLogger(__name__)

_DROPOUT_STREAM = 0x64726F70


class PreparedModel(NamedTuple):
    """Model, task and optimizer, ready for training.

    Attributes:
        task: the task over the model.
        module: the task's objective, wrapped for its parallelism by `World.prepare`.
    """

    task: Task
    module: nn.Module
    optimizer: Optimizer


def prepare_model(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_progress: Callable[[], None] = lambda: None,
) -> PreparedModel:
    """Build a model and its task, load, convert, compile and shard it, and build its optimizer.

    Each step needs the result of the one before: weights are loaded into the modules of their checkpoint; a
    recipe may replace those modules and their parameters, so it comes before everything that holds one of
    them: compiled code, shards, an optimizer. Weights that will be sharded are only recorded until then: no
    rank ever holds all of them.

    Args:
        is_fresh: load `model.pretrained_checkpoint`, or keep random weights; False for a resumed run, which
            loads its checkpoint afterwards.
        on_progress: called on progress while waiting for text.

    Raises `ProjectError` if tokenizer, weights or kernels are incompatible with the config.
    """
    with world.defer_weights() as weights:
        backbone = build_model(config, prepared.tokenizer, world)
        if is_fresh and load_initial_weights(config, prepared.tokenizer, backbone):
            match_scores(backbone.head, score_statistics(prepared.train))
        if config.adapter.type is not None:
            add_adapter(backbone, config)
    world.recipe.convert(backbone)
    task = build_task(TaskInputs(config, prepared, world, backbone, on_progress))
    compile_objective(config, task.objective, num_ranks=world.size)
    module = world.prepare(
        task.objective,
        overlaps_exchange=exchange_overlaps(backbone.kernels),
        **sharding_options(config, backbone, world),
        weights=weights,
        is_fresh=is_fresh,
    )
    vary_dropout_by_rank(config, world)
    return PreparedModel(task, module, build_optimizer(config.optimizer, backbone.model, backbone.layouts))


def sharding_options(config: RunConfig, backbone: Backbone, world: World) -> dict[str, bool]:
    """Return keyword arguments of `World.prepare` for gathering blocks, planned for this device's memory."""
    shape = model_shape(config, backbone.model.config.vocab_size)
    memory_mib, is_cuda = world.device_memory_mib, world.is_on_gpu
    reshards = choose_resharding(config, shape, memory_mib, is_cuda=is_cuda, kernels=backbone.kernels)
    if world.is_sharded:
        log.info("weights: gathered %s", reshards.reason)
    return {"reshards": bool(reshards.value), "gathers_copies": gathers_copies(world.recipe, shape)}


def build_model(config: RunConfig, tokenizer: TokenizerBundle, world: World) -> Backbone:
    """Build a run's model with its task head and random weights.

    Raises `ProjectError` if the model cannot be built, or if it needs another tokenizer.
    """
    spec, vocab_size = spec_of(config), num_embedding_rows(config, tokenizer)
    settings = spec.model_settings(config)
    backbone = build_backbone(config, tokenizer, vocab_size, world, spec.auto_class, settings)
    refuse_other_tokenizer(tokenizer, backbone.model.config.model_type)
    num_parameters = sum(parameter.numel() for parameter in backbone.model.parameters())
    outputs = "" if backbone.head is None else f", {backbone.head.linear.out_features:,} outputs"
    log.info("model: %s parameters, %s tokens%s", f"{num_parameters:,}", f"{vocab_size:,}", outputs)
    return backbone


def build_task(run: TaskInputs) -> Task:
    """Build the task of a run over its model, with plug-ins and the adapter."""
    config = run.config
    task: Task = import_module(f"{spec_of(config).keys.package}.task").build(run)
    task = with_plugins(task, config.plugins)
    return task if config.adapter.type is None else with_adapter(task, config)


def vary_dropout_by_rank(config: RunConfig, world: World) -> None:
    """Seed the dropout of each rank differently; rank 0 keeps its generator, as in a single-rank run.

    With one seed, all ranks would drop the same units, and averaging gradients over ranks would not average
    that noise. Call it after the initial weights were drawn, which are equal on all ranks, and before the
    generators are restored from a checkpoint.
    """
    if world.dp_rank:
        torch.manual_seed(stream_key(_DROPOUT_STREAM, config.seed, world.dp_rank))
