"""Files and folders that are neither run files nor profiles: of other tools, and of earlier runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neobert.config import ConfigError, all_keys, sections
from neobert.config.document import MAX_BYTES, load_document
from neobert.config.key_suggestions import closest
from neobert.config.migrated_keys import NAMES, SECTIONS
from neobert.runfiles.location import CHECKPOINTS, MANIFEST, RESOLVED

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"
TRAINER_STATE = "trainer_state"
PROFILE_KEYS = ("profile", "about", "extends", "waivers")
SHARED_KEYS = ("seed", "task", "variables")
GENERIC_KEYS = frozenset({"name", "path", "mode", "config", "project", "variables", "defaults", "debug"})
"""Keys of this schema or of other trainers that files of any tool have too."""
ENOUGH_TRAINING_KEYS = 3
A_LIST = "a list"
MOST_TOLD, MOST_COMPARED = 3, 20
YAML_KEY = re.compile(r"""^["']?([A-Za-z_][\w.-]*)["']?\s*:(?:\s|$)""", re.MULTILINE)
YAML_RECORDS = re.compile(r"\A(?:[ \t]*(?:#.*|---)?\r?\n)*- (?:&\w+\s+)?[\"']?[A-Za-z_][\w.-]*[\"']?\s*:")
TOML_KEY = re.compile(r"""^\[*\s*["']?([A-Za-z_][\w-]*)["']?[\w.\s"'-]*(?:\]|=)""", re.MULTILINE)
JSON_KEY = re.compile(r'"([^"\\]*)"\s*:')


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A path that is not linted. `meant`: a section, if half of its keys may be misspellings of ours."""

    path: Path
    reason: str
    meant: str = ""


def record_of_a_run(path: Path) -> LeftOut | None:
    """Say which record of a run a folder is; None for any other folder.

    `resolved.json` alone does not make a run directory: somebody may keep a copy among run files.
    """
    if (path / RESOLVED).is_file() and ((path / MANIFEST).is_file() or (path / CHECKPOINTS).is_dir()):
        return LeftOut(path, "a run directory")
    if (path / TRAINER_STATE).is_dir():
        return LeftOut(path, "a checkpoint")
    return None


def is_passed_over(folder: Path) -> bool:
    """Whether a folder is hidden, or holds what a tool installed or generated."""
    is_skipped = folder.name.startswith(".") or folder.name in SKIPPED_FOLDERS
    return is_skipped or (folder / VIRTUAL_ENVIRONMENT).is_file()


def left_out_because(path: Path) -> LeftOut | None:
    """Say why a file of a folder is not linted: none of its top-level keys is of a run file or a profile.

    A JSON file needs as many of them as of others: records of many tools have a profile, or a model.
    """
    if path.name == RESOLVED:
        return LeftOut(path, "the record of a run that was launched")
    if os.path.exists(path) and not os.path.isfile(path):  # to read a pipe is to wait for its writer
        return LeftOut(path, "not a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_BYTES:
        return LeftOut(path, "larger than 1 MiB, and no config is")
    suffix, known = path.suffix.lower(), _known_keys()
    keys = top_level_keys(content.decode("utf-8", errors="ignore").removeprefix("\ufeff"), suffix)
    ours = [key for key in keys if key in known]
    shared = [key for key in keys if key in SHARED_KEYS]
    is_record = suffix == ".json" and 2 * (len(ours) + len(shared)) < len(keys)
    return _explained(path, keys) if keys and (is_record or not ours) else None


def left_out_if_named(path: Path) -> LeftOut | None:
    """Say why a file that is named is not linted: it is clearly another tool's.

    Judged are misspelt sections, the flat arguments of other trainers, what cannot be read, and pipes.
    """
    if not os.path.isfile(path) or path.name == RESOLVED or os.path.getsize(path) > MAX_BYTES:
        return None
    other = left_out_because(path)
    if other is None or other.meant:
        return None
    text = path.read_bytes().decode("utf-8", errors="ignore").removeprefix("\ufeff")
    keys = top_level_keys(text, path.suffix.lower())
    num_training = sum(key in _training_keys() for key in keys)
    is_training = num_training >= ENOUGH_TRAINING_KEYS or 2 * num_training >= len(keys)
    return None if is_training or _is_broken(path, text, keys) else other


def _is_broken(path: Path, text: str, keys: Sequence[str]) -> bool:
    """Whether nobody can tell what a file is; lists and several documents are no run file's."""
    if keys == [A_LIST] or "\n---" in text:
        return False
    try:
        load_document(path)
    except ConfigError:
        return True
    return False


@cache
def _training_keys() -> frozenset[str]:
    """Keys that this schema, or another trainer, has in some section."""
    own = {key.rpartition(".")[2] for key in all_keys()}
    return frozenset({*own, *NAMES, *SECTIONS}) - GENERIC_KEYS


@cache
def _known_keys() -> tuple[str, ...]:
    return (*sections(), *PROFILE_KEYS)


def top_level_keys(text: str, suffix: str) -> list[str]:
    """Return the keys at the top; none where the text has none or they cannot be told."""
    if suffix == ".json":
        return _keys_of_json(text)
    if suffix == ".toml":
        import tomllib

        try:
            return list(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError):
            return list(dict.fromkeys(TOML_KEY.findall(text)))
    return [A_LIST] if YAML_RECORDS.match(text) else list(dict.fromkeys(YAML_KEY.findall(text)))


def _keys_of_json(text: str) -> list[str]:
    text = text.strip()
    try:
        content, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):  # without its top: only what has none of our sections is another's
        found = JSON_KEY.findall(text)
        return found if set(found).isdisjoint(sections()) else []
    if text[end:].lstrip().startswith("{"):
        return ["one value per line"]
    return list(content) or ["nothing"] if isinstance(content, dict) else [A_LIST]


def _explained(path: Path, keys: Sequence[str]) -> LeftOut:
    names = ", ".join(keys[:MOST_TOLD]) + (", ..." if len(keys) > MOST_TOLD else "")
    known, compared = list(_known_keys()), keys[:MOST_COMPARED]
    near = [meant for key in compared if (meant := closest(key, known))]
    is_meant = 2 * len(near) >= len(compared)
    return LeftOut(path, f"it has {names} at its top, and no run file has", near[0] if is_meant else "")
