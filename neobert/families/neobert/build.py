"""Construction of a NeoBERT model. Imports torch."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.export.weights import load_weights
from neobert.families.build import BuiltModel
from neobert.families.neobert.spec import section_of, with_positions
from neobert.families.table import longest_row
from neobert.model import NeoBERTLMHead, build_model_config
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.objectives import StepKernels, build_objective, resolve_step_kernels
from neobert.parallel import World
from neobert.plan.kernels import exchange_overlaps

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=NeoBERTPreTrainedModel)


def build_masked_lm(
    config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int, world: World
) -> BuiltModel:
    """Build the encoder with its decoder and the masked-language-model loss."""
    # No head pools yet: this is the pooling of embeddings, which the model card states.
    model, kernels = build_for_training(NeoBERTLMHead, config, tokenizer, vocab_size, world, pooling="avg")
    return BuiltModel(
        model=model,
        objective=build_objective(config, model, kernels, world.device.type, num_ranks=world.size),
        attention=kernels.attention,
        load=partial(load_initial_weights, model),
        overlaps_exchange=exchange_overlaps(kernels.name),
    )


def build_for_training(
    model_class: type[Model],
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,
    **head: Any,
) -> tuple[Model, StepKernels]:
    """Build an encoder with a head, with initial weights, and choose the kernels of its step.

    Every task with a NeoBERT calls this. `head` contains the head's settings, as arguments of
    `NeoBERTConfig`. Raises `ProjectError` ATT001 if a kernel that the config names cannot run.
    """
    kernels = resolve_step_kernels(config, world.device.type, world.compute_dtype)
    log.info("kernels: %s, attention: %s (%s)", kernels.name, kernels.attention, kernels.reason)
    section = with_positions(section_of(config), longest_row(config))
    model_config = build_model_config(
        section, vocab_size, tokenizer.pad_id, kernels.model_attention, kernels.modules, **head
    )
    model = model_class(model_config)
    if config.trainer.gradient_checkpointing:
        model.enable_gradient_checkpointing(config.trainer.gradient_checkpointing_every_n)
    return model, kernels


def load_initial_weights(model: NeoBERTPreTrainedModel, path: Path, may_lack: tuple[str, ...] = ()) -> None:
    """Load the initial weights of a new run in place. Arguments and errors as for `load_weights`."""
    report = load_weights(model, path, may_lack)
    log.info("loaded %d tensors from %s", report.num_tensors, report.path)
