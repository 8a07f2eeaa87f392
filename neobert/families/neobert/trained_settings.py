"""Comparison of the section `model` with the settings of the initial weights. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from neobert.config.schema import ModelConfig, RunConfig
from neobert.config.schema.model import Architecture
from neobert.errors import ProjectError
from neobert.families.rotary_base import extended_base
from neobert.hub_names import local_weights_path
from neobert.printable import printable
from neobert.runfiles.json_values import is_number
from neobert.runfiles.run_dir import CONFIG
from neobert.tasks.specs import spec_of

DECODER, START = "decoder.weight", "model.pretrained_checkpoint"
MAX_BYTES = 2**20
"""Maximum size of a config.json in bytes; typical files have a few thousand."""
# A key that config.json lacks has the value of the published model. rope_theta is compared by
# `_refuse_other_base`: training on longer rows may raise it.
PUBLISHED = {
    "hidden_size": 768,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "rope": True,
    "rms_norm": True,
    "norm_eps": 1e-5,
    "hidden_act": "swiglu",
    "embedding_multiplier": 1.0,
}


def refuse_other_model(config: RunConfig, weights: Path) -> None:
    """Raise `ProjectError` EXP005 if the config.json of NeoBERT weights contradicts the section `model`."""
    from neobert.runfiles.model_folder import folder_of_weights  # checkpoints, which `lint` seldom reads

    file = folder_of_weights(weights) / CONFIG
    if not isinstance(config.model, ModelConfig) or not file.is_file():
        return
    trained = _read_config(file)
    own = config.model.type
    if (kind := trained.get("model_type", own)) != own:
        raise _other_family_error(str(kind), file.parent)
    values = section_settings(trained)
    _refuse_other_types(values, file)
    if config.model.embedding_multiplier is None:
        del values["embedding_multiplier"]
    other = {name: each for name, each in values.items() if each != getattr(config.model, name)}
    if other:
        here = ", ".join(f"model.{name} is {getattr(config.model, name)}" for name in other)
        there = ", ".join(printable(str(each)) for each in other.values())
        edits = ", ".join(f"model.{name} to {printable(json.dumps(each))}" for name, each in other.items())
        raise ProjectError(
            "EXP005",
            f"{here}, but the weights in {file.parent} were trained with {there}",
            f"set {edits}",
            f"model.{next(iter(other))}",
        )
    _refuse_other_base(config, config.model, trained, file.parent)
    if not config.model.tie_word_embeddings and not trained.get("tie_word_embeddings"):
        _refuse_headless(config, file.parent)


def _refuse_other_types(values: Mapping[str, Any], file: Path) -> None:
    """Raise `ProjectError` EXP005 for a setting of the wrong type, such as null."""
    for name, published in PUBLISHED.items():
        value = values[name]
        if not (is_number(value) if isinstance(published, float) else type(value) is type(published)):
            message = (
                f"{name} is {printable(json.dumps(value))}, expected a value such as {json.dumps(published)}"
            )
            raise ProjectError("EXP005", message, f"correct {name} in {file}", str(file))


def _refuse_headless(config: RunConfig, folder: Path) -> None:
    """Raise `ProjectError` EXP005 if a key needs the masked-language-model head, which the weights lack."""
    from neobert.runfiles.weights_header import tensor_shapes  # checkpoints, which `lint` seldom reads

    if (key := spec_of(config).mix_key) and DECODER not in tensor_shapes(folder):
        message = f"{key} is above 0, but the weights in {folder} have no masked-language-model head"
        hint = f"set {key} to 0, or {START} to a checkpoint with that head"
        raise ProjectError("EXP005", message, hint, key)


def _refuse_other_base(
    config: RunConfig, model: ModelConfig, trained: Mapping[str, Any], folder: Path
) -> None:
    """Raise `ProjectError` EXP005 for another base of rotary positions; longer rows may have a larger one."""
    base, longest = stated_rope_theta(trained), _max_row_length(config)
    positions = stated_positions(trained)
    is_extended = longest > (positions or longest) and model.rope_theta > base
    if not model.rope or model.rope_theta == base or is_extended:
        return
    raise ProjectError(
        "EXP005",
        f"model.rope_theta is {model.rope_theta:g}, but the weights in {folder} were trained with {base:g}, "
        f"on {positions:,} positions (rows of this run have {longest:,})",
        f"set model.rope_theta to {base:g}",
        "model.rope_theta",
    )


def section_settings(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a NeoBERT's config.json by the keys of the section `model`."""
    values = {name: trained.get(name, default) for name, default in PUBLISHED.items()}
    return {name: each.lower() if isinstance(each, str) else each for name, each in values.items()}


def trained_positions(folder: Path) -> int:
    """Return the maximum sequence length of the model in a folder, or 0 if its config.json states none.

    Raises `ProjectError` EXP005 if the file cannot be read.
    """
    return stated_positions(_read_config(folder / CONFIG))


def stated_positions(trained: Mapping[str, Any]) -> int:
    """Return the maximum sequence length that a config.json states, or 0 if it states none."""
    stated = trained.get("max_position_embeddings", trained.get("max_length"))  # of the published model
    return stated if type(stated) is int else 0


def positions_of_section(model: ModelConfig, max_row_length: int) -> int:
    """Return the maximum sequence length: of the section, else the larger of the weights' and a row's length.

    A model fine-tuned on short rows keeps its maximum length.
    """
    if model.max_position_embeddings is not None:
        return model.max_position_embeddings
    trained = _read_weights_config(model)
    return max(max_row_length, stated_positions(trained) if trained else 0)


def stated_rope_theta(trained: Mapping[str, Any]) -> float:
    """Return the rotary base in NeoBERT's config.json, or the default if it states none."""
    base = trained.get("rope_theta")
    return float(base) if is_number(base) else ModelConfig().rope_theta


def rope_theta_for(config: RunConfig, folder: Path) -> float:
    """Return the base of rotary positions for the rows of a run, or 0 for learned positions.

    Raises `ProjectError` EXP005 if the config.json in `folder` cannot be read.
    """
    model, trained = config.model, _read_config(folder / CONFIG)
    assert isinstance(model, ModelConfig)
    length, head_size = _max_row_length(config), model.hidden_size // model.num_attention_heads
    base, positions = stated_rope_theta(trained), stated_positions(trained) or length
    return extended_base(base, positions, length, head_size) if model.rope else 0.0


def _max_row_length(config: RunConfig) -> int:
    return config.datacollator.max_length or config.dataset.max_seq_length


def embedding_multiplier(model: ModelConfig) -> float:
    """Return the factor on the token embeddings: if null, the initial weights' factor, else sqrt(D).

    Raises `ProjectError` EXP005 if the config.json of the initial weights is unreadable.
    """
    if model.embedding_multiplier is not None:
        return model.embedding_multiplier
    if (settings := _read_weights_config(model)) is not None:
        trained = settings.get("embedding_multiplier", 1.0)
        if is_number(trained):
            return trained
    return math.sqrt(model.hidden_size)


def _read_weights_config(model: ModelConfig) -> dict[str, Any] | None:
    """Return the config.json of the initial weights, or None if there is none. Raises like `_read_config`."""
    if (weights := local_weights_path(model)) is None:
        return None
    from neobert.runfiles.model_folder import folder_of_weights

    file = folder_of_weights(Path(weights)) / CONFIG
    return _read_config(file) if file.is_file() else None


def _read_config(file: Path) -> dict[str, Any]:
    if file.stat().st_size > MAX_BYTES:
        message = f"the file has {file.stat().st_size:,} bytes (limit {MAX_BYTES:,})"
        raise ProjectError("EXP005", message, "restore the checkpoint's config.json", str(file))
    from neobert.runfiles.model_folder import read_json

    content: dict[str, Any] = read_json(file, code="EXP005")
    return content


def _other_family_error(kind: str, folder: Path) -> ProjectError:
    """Return the error for weights of a transformers model, whose settings have other names."""
    is_trainable = kind in get_args(Architecture)
    section = f"set model.type to hf and model.config to {folder}, or " if is_trainable else ""
    return ProjectError(
        "EXP005",
        f"the weights in {folder} belong to a transformers {printable(kind)}, not to a NeoBERT",
        f"{section}set {START} to the weights of a NeoBERT",
        START,
    )
