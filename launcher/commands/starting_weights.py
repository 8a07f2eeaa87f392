"""Weights named by `--from`: their location and model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.preflight.hub_weights import download
from neobert.config.migrated_files import yaml_text
from neobert.config.schema import HfModelConfig, TokenizerConfig
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.families.hf.settings import Settings, read_settings
from neobert.families.neobert.spec import NEOBERT
from neobert.families.neobert.trained_settings import PUBLISHED, section_settings, stated_rope_theta
from neobert.families.rotary_base import extended_base
from neobert.families.table import family_by_model_type
from neobert.hub_names import is_hub_name
from neobert.plan.vocabulary import tokenizer_size
from neobert.printable import printable
from neobert.runfiles.model_folder import model_folder
from neobert.runfiles.weights_header import tensor_shapes

OPTION, CONTEXT = "--from", "--context"
WEIGHTS = "model.pretrained_checkpoint"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Names of tokenizer files that contain the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """Weights to start from.

    Attributes:
        place: value of model.pretrained_checkpoint: a path, or a name on the Hub.
        folder: folder on this machine with config.json, weights and tokenizer.
        kind: model_type of its config.json.
        positions: longest sequence that its config.json states; 0 if it states none.
        revision: commit of a name on the Hub; None for a path.
        keys: values of further keys of the section `model`.
    """

    place: str
    folder: Path
    kind: str
    positions: int
    revision: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def overrides(self) -> list[str]:
        """Overrides that select the weights and set their further keys."""
        keys = {f"model.{name}": value for name, value in self.keys.items()} | {WEIGHTS: self.place}
        if self.revision is not None:
            keys["model.revision"] = self.revision
        return [f"{key}={yaml_text(value)}" for key, value in keys.items()]


def find_weights(requested: str) -> StartingWeights:
    """Find the weights in a folder, a run directory or a Hub repository.

    The repository is downloaded; a folder is not copied. Only config.json and the headers of
    weights are read. Raises `ProjectError` if there is no usable model or tokenizer.
    """
    path = Path(os.path.expanduser(requested))
    name, _, revision = requested.partition("@")
    snapshot = None
    if not path.exists() and is_hub_name(name):
        snapshot = download(name, revision or None)
        folder, place = snapshot.folder, name
    elif not path.exists():
        hint = "pass a model folder, a run directory, or OWNER/NAME of a model on the Hugging Face Hub"
        raise ProjectError("no-weights", "no such folder", hint, requested, EXIT_USAGE)
    else:
        folder = model_folder(path)
        place = str(folder)
    settings = read_settings(HfModelConfig(pretrained_checkpoint=str(folder)))
    kind = settings.text("model_type", "")
    # A run reads only tokenizer.json of a folder; transformers also reads the older files of a repository.
    vocabularies = VOCABULARIES if snapshot else VOCABULARIES[:1]
    if not any((folder / name).is_file() for name in vocabularies):
        hint = _hint_on_tokenizer(folder)
        raise ProjectError(
            "no-tokenizer", f"the folder has no {VOCABULARIES[0]}", hint, str(folder), EXIT_USAGE
        )
    if fault := tokenizer_size(TokenizerConfig(path=str(folder))).fault:
        hint = f"copy the tokenizer of the model to {folder} again"
        raise ProjectError("malformed-tokenizer", fault, hint, exit_code=EXIT_USAGE)
    if snapshot is None:
        tensor_shapes(folder)
    commit = None if snapshot is None else snapshot.commit
    positions = family_by_model_type(kind).trained_positions(folder)
    return StartingWeights(place, folder, kind, positions, commit, _model_keys(kind, settings))


def _hint_on_tokenizer(folder: Path) -> str:
    """Return the hint to convert older tokenizer files, with the command, or else to save a tokenizer."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return f"save the tokenizer of the model to {folder}, or use another folder"
    saved = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    return f"run: python -c {quote(f'from transformers import AutoTokenizer; {saved}')}"


def with_rotary_base_for(weights: StartingWeights, length: int) -> StartingWeights:
    """Return the weights with the rotary base for rows of `length` tokens; unchanged if they have none."""
    if not weights.keys.get("rope"):
        return weights
    head_size = weights.keys["hidden_size"] // weights.keys["num_attention_heads"]
    base = extended_base(weights.keys["rope_theta"], weights.positions or length, length, head_size)
    return replace(weights, keys={**weights.keys, "rope_theta": base})


def require_extendable(weights: StartingWeights, positions: str, length: int) -> None:
    """Raise `ProjectError` unless the model can be extended to rows of `length` tokens.

    `positions` is the kind of position embeddings, see `ModelShape`. Learned positions cannot exceed their
    table, and the rotary base of a transformers model is fixed by its config.json.
    """
    if not weights.positions:
        return
    if length <= weights.positions:
        message = f"{CONTEXT} {length} does not exceed the {weights.positions:,} positions of the weights"
        raise ProjectError("usage", message, hint_on_context(length), CONTEXT, EXIT_USAGE)
    if weights.keys.get("rope"):
        return
    model = f"{printable(weights.kind)} in {weights.folder}"
    stated = f"the {weights.positions:,} {positions} positions of the {model}"
    if positions == "rotary":
        settings = f"rope_theta and max_position_embeddings in {weights.folder}/config.json"
        more = f"raise {settings}, {hint_on_context(length)}"
        message = f"{CONTEXT} {length} exceeds {stated}, whose rotary base is set in config.json"
        raise ProjectError("usage", message, more, CONTEXT, EXIT_USAGE)
    message = f"{CONTEXT} {length} exceeds {stated}: later positions have no trained values"
    hint = f"{hint_on_context(weights.positions)}, or pass a model with rotary positions as {OPTION}"
    raise ProjectError("usage", message, hint, CONTEXT, EXIT_USAGE)


def hint_on_context(length: int) -> str:
    """Return the hint to set the length of rows in the run file instead."""
    return f"leave out {CONTEXT}, and set dataset.max_seq_length to {length} in the run file"


def _model_keys(kind: str, settings: Settings) -> dict[str, Any]:
    """Return the keys of section `model`: its type, or for NeoBERT the sizes, instead of the profile's."""
    family = family_by_model_type(kind)
    if family is not NEOBERT:
        return {"type": family.name}
    stated = {name: _read_setting(settings, name, default) for name, default in PUBLISHED.items()}
    sizes = {**section_settings(stated), "rope_theta": stated_rope_theta(settings.values)}
    is_tied = settings.flag("tie_word_embeddings", False)
    return {**sizes, "tie_word_embeddings": is_tied, "embedding_multiplier": None}


def _read_setting(settings: Settings, name: str, default: object) -> object:
    """Return a setting from config.json, of the same type as its default. Raises `ProjectError` MOD006."""
    if isinstance(default, bool):
        return settings.flag(name, default)
    if isinstance(default, int):
        return settings.size(name, default)
    return settings.number(name, default) if isinstance(default, float) else settings.text(name, str(default))


def as_from_option_error(error: ProjectError) -> ProjectError:
    """Rephrase an error about `model.pretrained_checkpoint` as one about the option `--from`."""
    hint = error.hint.replace(f"set {WEIGHTS} to", f"pass as {OPTION}")
    return ProjectError(
        error.code,
        error.message.replace(WEIGHTS, OPTION),
        hint or f"pass another model as {OPTION}",
        error.place.replace(WEIGHTS, OPTION),
        EXIT_USAGE,
    )
