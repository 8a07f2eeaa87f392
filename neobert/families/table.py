"""Table of model families by name, the values of the key `model.type`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neobert.adapters.spec import adapter_parameters, trains_head
from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import RunConfig
from neobert.families.family import Family, UnsupportedKey
from neobert.families.hf.architecture import CAUSAL
from neobert.families.hf.architectures.table import ARCHITECTURES
from neobert.families.hf.spec import HF
from neobert.families.neobert.spec import NEOBERT
from neobert.families.nsa.spec import NSA
from neobert.families.shape import ModelShape
from neobert.hub_names import local_weights_path
from neobert.precision.libraries import enabled_conversion

FAMILIES: dict[str, Family] = {family.name: family for family in (NEOBERT, HF, NSA)}


def model_family(config: RunConfig) -> Family:
    """Return the family of the run's model."""
    return FAMILIES[config.model.type]


def unsupported_keys(config: RunConfig) -> Iterator[UnsupportedKey]:
    """Yield the keys of a run that its model family does not support."""
    family, optimizer = model_family(config), config.optimizer.name
    yield from family.unsupported(config)
    if OPTIMIZERS[optimizer].clips_logits and family is not NEOBERT:
        problem = f"{optimizer} measures attention logits, which only a NeoBERT supports"
        yield UnsupportedKey("optimizer.name", problem, "set optimizer.name to muon")


def family_by_model_type(model_type: str) -> Family:
    """Return the family that a model_type in config.json names; the family hf for any other name."""
    return FAMILIES.get(model_type, HF)


def is_causal(model_type: str) -> bool:
    """Return whether models with this model_type in config.json predict next tokens."""
    is_causal_transformers = model_type in ARCHITECTURES and CAUSAL in ARCHITECTURES[model_type].heads
    return is_causal_transformers or family_by_model_type(model_type).is_causal


def model_shape(config: RunConfig, vocab_size: int) -> ModelShape:
    """Return the shape of the run's model, with `vocab_size` embedding rows.

    Raises `ProjectError` MOD006 if the section `model` does not describe a valid model.
    """
    shape = model_family(config).read_shape(config.model, vocab_size, max_row_length(config))
    parameters = adapter_parameters(config.adapter, shape)
    return replace(shape, adapter_parameters=parameters, trains_head=trains_head(config))


def max_row_length(config: RunConfig) -> int:
    """Return the length of a row in tokens, which is also the `max_seqlen` of packed rows."""
    return config.datacollator.max_length or config.dataset.max_seq_length


def requested_rows(config: RunConfig) -> int | None:
    """Return the number of embedding rows that the run file sets, or None if the tokenizer decides."""
    return model_family(config).requested_rows(config.model)


def requested_kernels(config: RunConfig) -> tuple[str, str]:
    """Return the kernels of blocks and of packed attention that the run file sets, or `auto`.

    With a library of low precision, `auto` blocks are `torch`: the library converts torch modules, which
    other kernels would not call.
    """
    blocks, attention = model_family(config).requested_kernels(config.model)
    return "torch" if blocks == "auto" and enabled_conversion(config) else blocks, attention


def padded_attention(config: RunConfig) -> str:
    """Return the attention kernel of padded rows."""
    return model_family(config).padded_attention(config.model)


def with_kernels(config: RunConfig, blocks: str) -> RunConfig:
    """Return a copy of the config with `blocks` as the kernels of the encoder blocks."""
    return replace(config, model=model_family(config).with_kernels(config.model, blocks))


def named_weights(config: RunConfig) -> tuple[str, str]:
    """Return the initial weights that the run file names, and their revision on the Hub; empty if unset."""
    return config.model.pretrained_checkpoint or "", config.model.revision or ""


def initial_weights(config: RunConfig) -> str | None:
    """Return the path of the checkpoint that a fresh run starts from, or None for random weights."""
    return local_weights_path(config.model)
