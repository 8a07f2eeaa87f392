"""Model and task of a fine-tuning run: an encoder with a new head."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from neobert.adapters.lora import AdapterTask, add_adapter, saved_config
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import PreparedData
from neobert.errors import ProjectError
from neobert.export.folder import read_tokenizer_files
from neobert.families.neobert.build import build_for_training, load_initial_weights
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.objectives import StepKernels
from neobert.objectives.build import compile_encoder, refuse_loop
from neobert.parallel import World
from neobert.plan.kernels import exchange_overlaps
from neobert.runfiles.checkpoint.state import DATA_FINGERPRINT, TOKENIZER_DIGEST
from neobert.runfiles.model_folder import folder_of_weights, read_json
from neobert.runfiles.run_dir import CONFIG
from neobert.tasks.rank_data import RankData, describe
from neobert.tasks.weights import start_from_weights, vocabulary_rows
from neobert.training.loop.task import Task

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=NeoBERTPreTrainedModel)


def build_model(
    model_class: type[Model],
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    **head: Any,
) -> tuple[Model, StepKernels]:
    """Build an encoder with a head, and choose the kernels of its step.

    A fresh run loads the encoder of `model.pretrained_checkpoint`, and its head if the shapes match;
    otherwise the head is initialized: see `load_encoder_and_head`. With `adapter.type` the encoder is frozen
    and adapters are added. `head` contains the head's settings, as arguments of `NeoBERTConfig`.

    Raises `ProjectError` as `start_from_weights`, `vocabulary_rows` and `add_adapter` do.
    """
    tokenizer = prepared.tokenizer
    vocab_size = vocabulary_rows(config, tokenizer)
    model, kernels = build_for_training(model_class, config, tokenizer, vocab_size, world, **head)
    log.info("model: %s parameters, %d labels", f"{model.num_parameters():,}", model.num_labels)
    if is_fresh:
        start_from_weights(config, tokenizer, partial(load_encoder_and_head, model))
    if config.adapter.type is not None:
        add_adapter(model, config)
        log.info("adapter: %s trained parameters", f"{model.num_parameters(only_trainable=True):,}")
    if config.trainer.torch_compile:
        refuse_loop(config, kernels)
        compile_encoder(model.model, config.trainer.torch_compile_backend, is_alone=world.size == 1)
    return model, kernels


def load_encoder_and_head(model: NeoBERTPreTrainedModel, path: Path) -> None:
    """Load the encoder in place, and the checkpoint's head if it has the same shape.

    The classes of the head are reordered if the checkpoint has the same label names in another order: class 1
    is neutral in MNLI, but contradiction in CB.
    """
    load_initial_weights(model, path, may_lack=model.fresh_parts)
    file = folder_of_weights(path) / CONFIG
    if not file.is_file():
        return
    there, here = _label_names(file), list(model.config.id2label.values())
    if there == here or sorted(there) != sorted(here):
        return
    rows = torch.tensor([there.index(name) for name in here])
    with torch.no_grad():
        for parameter in model.get_submodule("classifier").parameters():
            parameter.copy_(parameter[rows])


def _label_names(file: Path) -> list[str]:
    """Return the names of `id2label` in a config.json, ordered by class number; empty if there are none."""
    names = read_json(file, code="EXP005").get("id2label") or {}
    try:
        numbers = {int(number): str(name) for number, name in names.items()}
    except (AttributeError, ValueError) as error:
        hint = 'write the labels as {"0": "name of the first class", ...}, or remove id2label'
        raise ProjectError("EXP005", "id2label does not map numbers to names", hint, str(file)) from error
    return [numbers[number] for number in sorted(numbers)]


def build_task(model: NeoBERTPreTrainedModel, kernels: StepKernels, data: RankData, **own: Any) -> Task:
    """Build a `Task`; `own` are the task-specific fields: objective, metrics, probe and worst case."""
    prepared, config = data.prepared, data.config
    kind: Callable[..., Task] = Task
    if config.adapter.type is not None:
        settings = saved_config(model, config)
        kind = partial(AdapterTask, scale=config.adapter.alpha / config.adapter.r, settings=settings)
    return kind(
        model=model,
        batches=data.batches,
        evaluation=None if prepared.eval is None else data.evaluation,
        inputs=data.inputs,
        describe=describe,
        flops=data.flops,
        epoch=data.epoch,
        microbatches_per_epoch=data.microbatches_per_epoch,
        tokenizer_files=read_tokenizer_files(prepared.tokenizer_dir),
        identity={DATA_FINGERPRINT: prepared.fingerprint, TOKENIZER_DIGEST: prepared.tokenizer.digest},
        attention_kernel=kernels.attention,
        num_classes=model.num_labels,
        overlaps_exchange=exchange_overlaps(kernels.name),
        **own,
    )


def label_settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Return `id2label` and `label2id` for a model's config."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}
