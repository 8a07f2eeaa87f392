"""Which files of a folder are run files or profiles. Only what is clearly something else is left out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.arguments import RUN_FILE_SUFFIXES
from neobert.config import sections

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})
PROFILE_KEYS = ("profile", "about", "extends", "waivers")
HEAD_BYTES = 256 * 1024
YAML_KEY = re.compile(r"""^["']?([A-Za-z_][\w.-]*)["']?\s*:(?:\s|$)""", re.MULTILINE)
TOML_KEY = re.compile(r"""^\[*\s*["']?([A-Za-z_][\w-]*)["']?[\w.\s"'-]*(?:\]|=)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Discovered:
    """Files to lint, in order, and how many others stood beside them."""

    files: tuple[Path, ...]
    num_skipped: int


def discover(paths: Sequence[Path]) -> Discovered:
    """Files that were named, and those of the folders that were named; each once, sorted within a folder."""
    files: dict[Path, None] = {}
    num_skipped = 0
    for path in paths:
        if not os.path.isdir(path):  # `Path.is_dir` raises where nobody may look
            files[path] = None
            continue
        for candidate in _candidates(path):
            if is_clearly_something_else(candidate):
                num_skipped += 1
            else:
                files[candidate] = None
    return Discovered(tuple(files), num_skipped)


def _candidates(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS
        )
        for name in sorted(names):
            if name.lower().endswith(RUN_FILE_SUFFIXES) and not name.startswith("."):
                yield Path(place, name)


def is_clearly_something_else(path: Path) -> bool:
    """Whether a file has keys at its top, and none that a run file or a profile has."""
    try:
        with path.open("rb") as file:
            text = file.read(HEAD_BYTES).decode("utf-8", errors="ignore")
    except OSError:
        return False
    keys = set(
        (TOML_KEY if path.suffix.lower() == ".toml" else YAML_KEY).findall(text.removeprefix("\ufeff"))
    )
    return bool(keys) and keys.isdisjoint((*sections(), *PROFILE_KEYS))
