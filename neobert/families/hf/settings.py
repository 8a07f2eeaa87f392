"""Settings of a transformers model: typed access to a config.json, read as data.

The file comes from outside: its size is bounded, every value in use is checked, nothing is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neobert.config.schema.model import SIZES, HfModelConfig, ModelConfig, NsaModelConfig
from neobert.errors import ProjectError
from neobert.hub_names import local_weights_path
from neobert.printable import printable
from neobert.runfiles.run_dir import CHECKPOINTS, CONFIG, LATEST

CODE = "MOD006"
POSITIONS = "max_position_embeddings"
KV_HEADS = "num_key_value_heads"
MAX_FILE_BYTES = 2**20
OWN_TYPES = (ModelConfig().type, NsaModelConfig().type)
"""Model families that have config.json files of their own."""
LARGEST = 2**31
"""Upper bound of every size; larger values are not sizes of a model."""


class Settings(NamedTuple):
    """Model settings by transformers' names.

    Attributes:
        place: file or section that error messages name.
        key: key of the section that names the file, or the architecture.
        section_sizes: sizes that the section overrides, by its own names.
    """

    values: Mapping[str, Any]
    place: str
    key: str
    section_sizes: Mapping[str, int] = {}

    @property
    def is_eager(self) -> bool:
        """Return whether transformers' eager attention is set, which stores the attention probabilities."""
        return self.values.get("attn_implementation") == "eager"

    def size(self, name: str, default: int, least: int = 1) -> int:
        """Return a setting, `default` if null. Raises `ProjectError` unless it is an integer from `least`."""
        value = self._value_or_default(name, default)
        if type(value) is not int or not least <= value < LARGEST:
            expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
            is_large = type(value) is int and value >= LARGEST
            raise self.invalid_value_error(name, f"an integer below {LARGEST:,}" if is_large else expected)
        return value

    def size_or_none(self, name: str, default: int | None) -> int | None:
        """Return a positive integer setting, or None if it is null, or missing without a default.

        Raises `ProjectError` for any other value.
        """
        value = self.values.get(name, default)
        return None if value is None else self.size(name, value)

    def number(self, name: str, default: float) -> float:
        """Return a setting, `default` if null. Raises `ProjectError` unless it is a number of at least 0."""
        value = self._value_or_default(name, default)
        if type(value) not in (int, float) or not 0 <= value < LARGEST:
            raise self.invalid_value_error(name, "a number of at least 0")
        return float(value)

    def number_or_none(self, name: str, default: float | None) -> float | None:
        """Return a non-negative number setting, or None if it is null, or missing without a default.

        Raises `ProjectError` for any other value.
        """
        value = self.values.get(name, default)
        return None if value is None else self.number(name, value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a setting, `default` if null. Raises `ProjectError` unless it is a boolean."""
        value = self._value_or_default(name, default)
        if type(value) is not bool:
            raise self.invalid_value_error(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """Return a setting, `default` if null. Raises `ProjectError` unless it is a string."""
        value = self._value_or_default(name, default)
        if type(value) is not str:
            raise self.invalid_value_error(name, "a string")
        return value

    def invalid_value_error(self, name: str, expected: str) -> ProjectError:
        """Return the MOD006 error for an invalid value of the setting `name`."""
        shown = printable(json.dumps(self.values.get(name))[:60])
        return ProjectError(
            CODE, f"{name} is {shown}, expected {expected}", f"correct {name} in {self.place}", self.place
        )

    def unsupported_architecture_error(
        self, architecture: str, reason: str, supported: Sequence[str]
    ) -> ProjectError:
        """Return the MOD006 error for an architecture outside `supported`; `reason` may be empty."""
        problem = "model_type is missing"
        if architecture:
            problem = f"architecture {printable(architecture[:60])} is not supported"
        why = reason or f"model.type hf trains models of type {', '.join(supported)}"
        wanted = "another type" if reason else "a supported type"
        hint = f"set {self.key} to a model of {wanted}"
        hint = f"set model.type to {architecture}" if architecture in OWN_TYPES else hint
        return ProjectError(CODE, f"{problem}: {why}", hint, self.key)

    def _value_or_default(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value


def read_settings(section: HfModelConfig) -> Settings:
    """Return the settings of the section's config.json or architecture, and the section's sizes.

    Raises `ProjectError` MOD006 if the file cannot be read, or if neither key is set.
    """
    key = "model.config" if section.config else "model.pretrained_checkpoint"
    source = section.config or local_weights_path(section)
    own = {name: getattr(section, name) for name in SIZES}
    given = {name: value for name, value in own.items() if value is not None}
    attention = {"attn_implementation": section.attention}
    if source is not None:
        file = _config_file(source)
        values = {**_read_json(file, key), **attention}
        return Settings(values, "the section model" if given else str(file), key, given)
    if section.architecture is None:
        raise ProjectError(
            CODE,
            "model.type is hf, but neither model.config nor model.architecture is set",
            "set model.config to a transformers config.json, or model.architecture to its model_type",
            "model.config",
        )
    values = {"model_type": section.architecture, **attention}
    return Settings(values, "the section model", "model.architecture", given)


def _config_file(source: str) -> Path:
    path = Path(os.path.expanduser(source))
    return path / CONFIG if path.is_dir() else path


def _read_json(file: Path, key: str) -> dict[str, Any]:
    try:
        if not file.is_file():
            raise _unreadable_error(file, key, "is not a file" if file.exists() else "does not exist")
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise _unreadable_error(file, key, f"is larger than {MAX_FILE_BYTES // 2**20} MiB")
        values = json.loads(content)
    except (OSError, ValueError, RecursionError):
        raise _unreadable_error(file, key, "cannot be read as JSON") from None
    if not isinstance(values, dict):
        raise _unreadable_error(file, key, "is not a JSON object")
    return values


def _unreadable_error(file: Path, key: str, problem: str) -> ProjectError:
    kind = "transformers config.json, or to its folder" if key == "model.config" else "transformers folder"
    newest = file.parent / CHECKPOINTS / LATEST  # of a run directory
    way = printable(str(newest)) if newest.is_dir() else f"a {kind}"
    return ProjectError(CODE, f"{printable(str(file))} {problem}", f"set {key} to {way}", key)


def error_reason(error: Exception) -> str:
    """Return the first line of the error that a library raised for a config.json."""
    line = (str(error).splitlines() or [""])[0]
    return printable(line if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {line}")
