"""Transformers models as a model family: settings, shape and limits. Imports no torch.

Functions that read the settings raise `ProjectError` MOD006 for an invalid section or config.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neobert.config.schema import HfModelConfig, RunConfig
from neobert.families.family import Family, UnsupportedKey
from neobert.families.hf.architecture import CAUSAL, Architecture
from neobert.families.hf.architectures.table import ARCHITECTURES, REFUSED
from neobert.families.hf.heads import heads_by_auto_class, takes_texts
from neobert.families.hf.settings import POSITIONS, Settings, read_settings
from neobert.families.shape import ModelShape
from neobert.schema_fields import MOST_BLOCKS
from neobert.tasks.specs import SPECS, spec_of

BY_LENGTH = ("dynamic", "longrope", "su")
LENGTH_KEY = "dataset.max_seq_length"
DROPOUT_KEY, WEIGHTS = "model.attention_dropout", "model.pretrained_checkpoint"
OUTPUTS_KEY = "model.dropout"


def model_section(config: RunConfig) -> HfModelConfig:
    """Return the section `model` of a run with this model family; other families fail an assertion."""
    assert isinstance(config.model, HfModelConfig), "config of another model family"
    return config.model


def read_model_settings(section: HfModelConfig) -> tuple[Settings, Architecture]:
    """Read the settings, by the names of their architecture. Raises `ProjectError` MOD006.

    The section's `max_position_embeddings` is the longest sequence; that of a config.json has more rows where
    positions do not begin at 0.
    """
    given = read_settings(section)
    name = given.text("model_type", "")
    if name not in ARCHITECTURES:
        raise given.unsupported_architecture_error(name, REFUSED.get(name, ""), tuple(ARCHITECTURES))
    architecture, values = ARCHITECTURES[name], dict(given.values)
    for key, value in given.section_sizes.items():
        values[architecture.setting_name(key)] = value
    layers, types = given.section_sizes.get("num_hidden_layers"), values.get("layer_types")
    if layers is not None and isinstance(types, list):
        values["layer_types"] = types[:layers]
    if POSITIONS in given.section_sizes:
        values[architecture.setting_name(POSITIONS)] += architecture.first_position(given)
    if section.attention_dropout is not None:
        values[architecture.attention_dropout[0]] = section.attention_dropout
    if section.dropout is not None and architecture.dropout is not None:
        settings = (architecture.dropout[0], architecture.embedding_dropout)
        values.update({name: section.dropout for name in settings if name})
    if not architecture.packs:
        values["attn_implementation"] = "eager"  # the only one that the code of the model has
    given, num_blocks = given._replace(values=values), architecture.setting_name("num_hidden_layers")
    if given.size(num_blocks, 1) > MOST_BLOCKS:
        raise given.invalid_value_error(num_blocks, f"a positive integer of at most {MOST_BLOCKS:,}")
    return given, architecture


def read_shape(section: HfModelConfig, vocab_size: int, max_row_length: int) -> ModelShape:
    """Read the shape from the section `model` and config.json.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    settings, architecture = read_model_settings(section)
    unused = architecture.first_position(settings)
    longest = num_position_rows(settings, architecture, max_row_length) - unused
    if longest < 1:
        raise settings.invalid_value_error(
            architecture.setting_name(POSITIONS), f"more than {unused}, the first position of a token"
        )
    return replace(architecture.shape(settings, vocab_size, longest), first_position=unused)


def num_position_rows(settings: Settings, architecture: Architecture, max_row_length: int) -> int:
    """Return transformers' `max_position_embeddings`: a row of this length fits if none is given."""
    default = max_row_length + architecture.first_position(settings)
    return settings.size(architecture.setting_name(POSITIONS), default)


def trained_positions(folder: Path) -> int:
    """Return the maximum sequence length of the model in a folder, or 0 if its config.json states none.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    settings, architecture = read_model_settings(HfModelConfig(pretrained_checkpoint=str(folder)))
    stated = settings.size(architecture.setting_name(POSITIONS), 0, least=0)
    return max(0, stated - architecture.first_position(settings))


def requested_rows(section: HfModelConfig) -> int | None:
    """Return the embedding rows: `vocab_size` of the section, else of the initial weights, else None.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    if section.vocab_size is not None or section.pretrained_checkpoint is None:
        return section.vocab_size
    return read_settings(section).size("vocab_size", 1)


def requested_kernels(section: HfModelConfig) -> tuple[str, str]:
    """Return the kernels of blocks and of packed attention: sdpa if attention has dropout, else auto.

    With eager attention, rows are not packed. Raises `ProjectError` MOD006 for an invalid config.json.
    """
    settings, architecture = read_model_settings(section)
    name, default = architecture.attention_dropout
    has_dropout = settings.number(name, default) > 0
    return "torch", "sdpa" if has_dropout and not settings.is_eager else "auto"


def dropout(section: HfModelConfig) -> float:
    """Return the largest dropout probability of attention and of the outputs of blocks.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    settings, architecture = read_model_settings(section)
    known = (architecture.attention_dropout, architecture.dropout)
    return max(settings.number(*each) for each in known if each is not None)


def dropout_key(section: HfModelConfig) -> str:
    """Return the key that sets dropout in the blocks: of their outputs where the architecture has it.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    _, architecture = read_model_settings(section)
    return DROPOUT_KEY if architecture.dropout is None else OUTPUTS_KEY


def padded_attention(section: HfModelConfig) -> str:
    """Return the implementation of attention in padded rows: eager if the architecture has no SDPA.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    settings, architecture = read_model_settings(section)
    return settings.text("attn_implementation", section.attention) if architecture.has_sdpa else "eager"


def unsupported_keys(config: RunConfig) -> Iterator[UnsupportedKey]:
    """Yield the config keys that this project does not support for transformers models.

    Raises `ProjectError` MOD006 for an invalid config.json.
    """
    section = model_section(config)
    settings, architecture = read_model_settings(section)
    name = settings.text("model_type", "")
    if section.architecture not in (None, name):
        problem = f"architecture is {section.architecture}, but {settings.key} is a {name}"
        yield UnsupportedKey("model.architecture", problem, "set model.architecture to null")
    if config.datacollator.pack_sequences and not architecture.packs:
        problem = f"{name} computes attention by itself, not through transformers' AttentionInterface, so "
        problem += "documents in one row would attend to each other"
        yield UnsupportedKey(
            "datacollator.pack_sequences", problem, "set datacollator.pack_sequences to false"
        )
    elif config.datacollator.pack_sequences and section.attention != "sdpa":
        problem = f"attention {section.attention} needs padded rows, but rows are packed"
        yield UnsupportedKey("model.attention", problem, "set model.attention to sdpa")
    if section.dropout is not None and architecture.dropout is None:
        problem = f"transformers has no dropout of the outputs of blocks for a {name}"
        yield UnsupportedKey(OUTPUTS_KEY, problem, f"remove {OUTPUTS_KEY}, or set {DROPOUT_KEY} instead")
    yield from _unsupported_head(config, name)
    longest = config.datacollator.max_length or config.dataset.max_seq_length
    yield from unsupported_rotation(settings, longest)
    kv_heads = section.num_key_value_heads
    if kv_heads not in (None, architecture.shape(settings, 1, 1).attention.kv_heads):
        problem = f"num_key_value_heads is {kv_heads}, but a {name} has one for each query head"
        yield UnsupportedKey("model.num_key_value_heads", problem, "remove model.num_key_value_heads")
    if config.trainer.gradient_checkpointing and not architecture.recomputes:
        problem = f"transformers has no gradient checkpointing for a {name}"
        key = "trainer.gradient_checkpointing"
        yield UnsupportedKey(
            key, problem, f"set {key} to false, and lower trainer.per_device_train_batch_size"
        )
    is_padded = not config.datacollator.pack_sequences
    if config.trainer.torch_compile and is_padded and not architecture.compiles_padded:
        problem = f"torch.compile makes too many graphs for padded rows of a {name}"
        may_pack = "datacollator.pack_sequences to true, or " if architecture.packs else ""
        yield UnsupportedKey(
            "trainer.torch_compile", problem, f"set {may_pack}trainer.torch_compile to false"
        )


def _unsupported_head(config: RunConfig, name: str) -> Iterator[UnsupportedKey]:
    task, heads, poolings = spec_of(config), heads_by_auto_class(name), ARCHITECTURES[name].poolings
    if not task.has_head:
        return
    pooling = task.model_settings(config).get("pooling")
    if task.predicts == "next" and CAUSAL not in heads:
        problem = f"task {task.name} needs a causal model, and a {name} attends in both directions"
        yield UnsupportedKey("task", problem, f"set {WEIGHTS} to a causal model, such as a llama or a qwen2")
    elif task.auto_class not in heads and task.mix_key:
        problem = f"transformers has no head of this architecture for {task.mix_key}"
        yield UnsupportedKey(task.mix_key, problem, f"set {task.mix_key} to 0")
    elif task.auto_class not in heads:
        problem = f"transformers has no head of this architecture for task {task.name}"
        known = [name for name, each in SPECS.items() if each.auto_class in heads]
        hint = f"set task to {' or '.join(known)}" if known else "set model.config to a model with this head"
        yield UnsupportedKey("task", problem, hint)
    elif takes_texts(task.auto_class) and pooling not in (None, *poolings):
        key, others = f"{task.name}.pooling", " or ".join(poolings)
        problem = f"transformers' classifier of this architecture pools by {others}, not {pooling}"
        yield UnsupportedKey(key, problem, f"set {key} to {others}")


def unsupported_rotation(settings: Settings, max_row_length: int) -> Iterator[UnsupportedKey]:
    """Yield the row length if a long document would change the positions of the others in its row."""
    for scaling in _rope_scalings(settings):
        kind = scaling.get("rope_type", scaling.get("type"))
        limit = _original_length(settings, scaling)
        if kind in BY_LENGTH and max_row_length > limit:
            problem = f"rotary positions of type {kind} change for a whole row if one document exceeds "
            problem += f"{limit:,} tokens, but rows have {max_row_length:,}"
            yield UnsupportedKey(LENGTH_KEY, problem, f"set {LENGTH_KEY} to {limit}")


def _rope_scalings(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions: one, or one for each type of block."""
    given = settings.values.get("rope_parameters") or settings.values.get("rope_scaling")
    if isinstance(given, dict):
        yield from [each for each in given.values() if isinstance(each, dict)] or [given]


def _original_length(settings: Settings, scaling: Mapping[str, Any]) -> int:
    name = "original_max_position_embeddings"
    return settings._replace(values={**settings.values, **scaling}).size(name, settings.size(POSITIONS, 2048))


HF = Family(
    name="hf",
    module="neobert.families.hf.build",
    read_shape=read_shape,
    requested_rows=requested_rows,
    requested_kernels=requested_kernels,
    dropout=dropout,
    dropout_key=dropout_key,
    padded_attention=padded_attention,
    kernel_key="model.type",
    kernel_hint="report a bug with the versions of torch and transformers",
    attention_key=DROPOUT_KEY,
    attention_reason="the model has attention dropout, which only sdpa computes",
    attention_hint=f"set {DROPOUT_KEY} to 0, which trains without attention dropout",
    modules="the transformers modules",
    with_kernels=lambda section, _blocks: section,
    unsupported=unsupported_keys,
    trained_positions=trained_positions,
)
