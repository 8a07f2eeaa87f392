"""Files and folders as splits.

A file belongs to the split that its name starts with (`train-00001.parquet`, `valid.txt.gz`) or that one of its
folders below the root is named after (`test/part.jsonl`); every other file is training text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from neobert.data.readers import FileSource
from neobert.data.splits import ALIASES
from neobert.data.text_files import KINDS, kind_of
from neobert.errors import ProjectError

READABLE = ", ".join(KINDS) + ", each plain or .gz"


def local_splits(path: Path, text_column: str | None) -> dict[str, FileSource]:
    """Sort a file or the files of a folder into splits. Raises DAT001 where there is nothing to read."""
    root, files = _files(path)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file.relative_to(root)) if path.is_dir() else "train", []).append(file)
    return {
        name: FileSource(
            f"{path}" if name == "train" else f"{path} ({name})", root, tuple(members), text_column
        )
        for name, members in sorted(splits.items())
    }


def _files(path: Path) -> tuple[Path, list[Path]]:
    if not path.exists():
        raise _missing(path, "does not exist", "give the path of a file or a folder in dataset.path")
    if path.is_dir():
        return path, _files_below(path)
    if kind_of(path) is None:
        raise _missing(path, f"is none of {READABLE}", "convert it, or name it by what it holds")
    if path.stat().st_size == 0:
        raise ProjectError("DAT004", "the file is empty", "give a file with text in dataset.path", str(path))
    return path.parent, [path]


def _files_below(root: Path) -> list[Path]:
    found, others = [], Counter[str]()
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            file = Path(folder, name)
            if name.startswith(".") or kind_of(file) is None:
                others[file.suffix or name] += 1
            else:
                found.append(file)
    if not found:
        seen = ", ".join(f"{count} x {suffix}" for suffix, count in others.most_common(5)) or "nothing"
        raise _missing(root, f"holds none of {READABLE}; found: {seen}", "point dataset.path at text")
    return sorted(found)


def _raise(error: OSError) -> None:
    raise _missing(Path(error.filename), f"cannot be listed: {error.strerror}", "check its rights") from error


def _split_of(relative: Path) -> str:
    for folder in relative.parts[:-1]:
        if folder.lower() in ALIASES:
            return ALIASES[folder.lower()]
    return ALIASES.get(re.split(r"[-_.\s]", relative.name.lower(), maxsplit=1)[0], "train")


def _missing(place: Path, message: str, hint: str) -> ProjectError:
    return ProjectError("DAT001", message, hint, str(place))
