"""Which files of a folder are run files or profiles. Only what is clearly something else is left out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.arguments import RUN_FILE_SUFFIXES
from launcher.rundir import RESOLVED
from neobert.config import sections
from neobert.config.suggest import closest

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
PROFILE_KEYS = ("profile", "about", "extends", "waivers")
SHARED_KEYS = ("seed", "task", "variables")
HEAD_BYTES = 256 * 1024
MOST_TOLD, MOST_COMPARED = 3, 20
YAML_KEY = re.compile(r"""^["']?([A-Za-z_][\w.-]*)["']?\s*:(?:\s|$)""", re.MULTILINE)
TOML_KEY = re.compile(r"""^\[*\s*["']?([A-Za-z_][\w-]*)["']?[\w.\s"'-]*(?:\]|=)""", re.MULTILINE)
JSON_KEY = re.compile(r'"([^"\\]*)"\s*:')


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not linted. `meant`: a section, where half of its keys may be misspellings of ours."""

    path: Path
    reason: str
    meant: str = ""


@dataclass(frozen=True, slots=True)
class Discovered:
    """Files to lint, in order, and others that stood beside them: those that may be meant first."""

    files: tuple[Path, ...]
    left_out: tuple[LeftOut, ...]


def discover(paths: Sequence[Path]) -> Discovered:
    """Files that were named, and those of the folders that were named; each once, sorted within a folder."""
    files: dict[Path, None] = {}
    left_out: list[LeftOut] = []
    for path in paths:
        if not os.path.isdir(path):  # `Path.is_dir` raises where nobody may look
            files[path] = None
            continue
        for candidate in _candidates(path):
            if other := left_out_because(candidate):
                left_out.append(other)
            else:
                files[candidate] = None
    return Discovered(tuple(files), tuple(sorted(left_out, key=lambda other: not other.meant)))


def _candidates(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS
        )
        for name in sorted(names):
            if name.lower().endswith(RUN_FILE_SUFFIXES) and not name.startswith("."):
                yield Path(place, name)


def left_out_because(path: Path) -> LeftOut | None:
    """Why a file is not linted: it has keys at its top, and none that a run file or a profile has.

    A JSON file needs as many of them as of others: records of many tools have a profile, or a model.
    """
    if path.name == RESOLVED:
        return LeftOut(path, "the record of a run that was launched")
    if os.path.exists(path) and not os.path.isfile(path):  # to read a pipe is to wait for its writer
        return LeftOut(path, "it is no regular file")
    try:
        with path.open("rb") as file:
            text = file.read(HEAD_BYTES).decode("utf-8", errors="ignore").removeprefix("\ufeff")
    except OSError:
        return None
    suffix, known = path.suffix.lower(), _known_keys()
    keys = _keys_at_top(text, suffix)
    ours = [key for key in keys if key in known]
    shared = [key for key in keys if key in SHARED_KEYS]
    is_record = suffix == ".json" and 2 * (len(ours) + len(shared)) < len(keys)
    return _explained(path, keys) if keys and (is_record or not ours) else None


def _known_keys() -> list[str]:
    return [*sections(), *PROFILE_KEYS]


def _keys_at_top(text: str, suffix: str) -> list[str]:
    if suffix == ".json":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):  # its top cannot be told: what has none of our keys is another's
            found = JSON_KEY.findall(text)
            return found if set(found).isdisjoint(sections()) else []
        return list(content) or ["nothing"] if isinstance(content, dict) else ["a list"]
    pattern = TOML_KEY if suffix == ".toml" else YAML_KEY
    return list(dict.fromkeys(pattern.findall(text)))


def _explained(path: Path, keys: Sequence[str]) -> LeftOut:
    names = ", ".join(keys[:MOST_TOLD]) + (", ..." if len(keys) > MOST_TOLD else "")
    known, compared = _known_keys(), keys[:MOST_COMPARED]
    near = [meant for key in compared if (meant := closest(key, known))]
    is_meant = 2 * len(near) >= len(compared)
    return LeftOut(path, f"it has {names} at its top, and no run file has", near[0] if is_meant else "")
