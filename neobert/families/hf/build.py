"""The heavy half of transformers' encoders. Only classes of the installed transformers are built."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.families.build import BuiltModel
from neobert.families.hf.objective import Head, TransformersMaskedLM
from neobert.families.hf.settings import CODE, read_settings
from neobert.families.hf.spec import max_positions, section_of, unsupported
from neobert.families.table import longest_row
from neobert.parallel import World
from neobert.plurals import listed
from neobert.printable import printable

log = logging.getLogger(__name__)

LEFT_OUT = ("auto_map", "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path")
"""Keys of a config.json that name code to run, or describe the file and not the model."""


class Parts(NamedTuple):
    """The blocks of an architecture, and its way from hidden states to logits."""

    blocks: Callable[[Any], nn.ModuleList]
    head: Callable[[Any], Head]


PARTS = {
    "bert": Parts(lambda model: model.bert.encoder.layer, lambda model: model.cls),
    "modernbert": Parts(
        lambda model: model.model.layers,
        lambda model: lambda hidden: model.decoder(model.head(hidden)),
    ),
}


def build_masked_lm(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,  # noqa: ARG001
) -> BuiltModel:
    """Build the encoder with its masked-language-model head, with the initial weights of transformers."""
    for key, problem, hint in unsupported(config):
        raise ProjectError(CODE, f"model.type hf: {problem}", hint, key)
    settings = build_config(config, tokenizer, vocab_size)
    model = AutoModelForMaskedLM.from_config(settings, dtype=torch.float32).train()
    parts = PARTS[settings.model_type]
    blocks = parts.blocks(model)
    if config.trainer.gradient_checkpointing:
        _recompute(blocks, config.trainer.gradient_checkpointing_every_n)
    objective = TransformersMaskedLM(
        model, parts.head(model), list(blocks), masked_logits_only=config.trainer.masked_logits_only_loss
    )
    log.info("model: %s of transformers, attention: %s", settings.model_type, settings._attn_implementation)
    return BuiltModel(
        model=model,
        objective=objective,
        attention=str(settings._attn_implementation),
        load=partial(load_initial_weights, model),
        identity={"model configuration": digest_of(settings)},
    )


def build_config(config: RunConfig, tokenizer: TokenizerBundle, vocab_size: int) -> PretrainedConfig:
    """Return transformers' configuration: the settings of the run with the ids of its own tokenizer.

    Raises `ProjectError` MOD006 for a value that transformers refuses.
    """
    section = section_of(config)
    values = {name: value for name, value in read_settings(section).values.items() if name not in LEFT_OUT}
    ids = {
        "pad_token_id": tokenizer.pad_id,
        "cls_token_id": tokenizer.cls_id,
        "sep_token_id": tokenizer.sep_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
    }
    values |= ids | {
        "vocab_size": vocab_size,
        "max_position_embeddings": max_positions(section, longest_row(config)),
    }
    architecture = values.pop("model_type")
    try:
        settings: PretrainedConfig = AutoConfig.for_model(architecture, **values)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        message = f"transformers refuses the configuration: {printable(str(error))}"
        raise ProjectError(CODE, message, "correct model.config", "model.config") from error
    return settings


def digest_of(settings: PretrainedConfig) -> str:
    """Return the SHA-256 of a configuration, without what may differ between two sessions of one run."""
    values = settings.to_dict()
    for name in ("transformers_version", "dtype", "_attn_implementation", "attn_implementation"):
        values.pop(name, None)
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _recompute(blocks: Iterable[Any], every_n: int) -> None:
    """Recompute blocks 0, n, 2n, ... in the backward pass."""
    for index, block in enumerate(blocks):
        # Attributes of transformers' layers: the method that sets them differs between its releases.
        block.gradient_checkpointing = index % every_n == 0
        block._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def load_initial_weights(model: PreTrainedModel, folder: Path) -> None:
    """Load a folder of transformers in place: every weight of the model, from safetensors alone.

    Weights that this model has no use for, such as a pooler, are left. Raises `ProjectError` EXP005.
    """
    try:
        loaded, report = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=model.config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        message = f"the weights cannot be loaded: {printable(str(error))}"
        hint = "set model.pretrained_checkpoint to a folder with config.json and model.safetensors"
        raise ProjectError("EXP005", message, hint, str(folder)) from error
    absent = sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])})
    if absent:
        hint = "set model.config to the checkpoint's config.json, or take another checkpoint"
        message = f"the checkpoint lacks weights of the model: {listed(absent)}"
        raise ProjectError("EXP005", message, hint, str(folder))
    state: dict[str, Tensor] = loaded.state_dict()
    model.load_state_dict(state)
    log.info("weights: %d tensors of %s", len(state), folder)
