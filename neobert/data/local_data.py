"""Files and folders as splits.

A file belongs to the split that its name starts with (`train-00001.parquet`, `valid.txt.gz`) or that one of
its folders below the root is named after (`test/part.jsonl`); every other file is training text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from neobert.data.readers import FileSource, TextSource
from neobert.data.splits import ALIASES
from neobert.data.text_files import KINDS, kind_of
from neobert.errors import ProjectError

READABLE = ", ".join(KINDS) + ", each plain or .gz"


def local_splits(path: Path, text_column: str | None) -> dict[str, Callable[[], TextSource]]:
    """Sort a file or the files of a folder into splits. Raises DAT001 where there is nothing to read."""
    if not path.exists():
        raise _missing(path, "does not exist", "give the path of a file or a folder in dataset.path")
    if not path.is_dir():
        _check_file(path)
        return {"train": lambda: FileSource(str(path), path.parent, (path,), text_column)}
    members: dict[str, list[Path]] = {}
    for file in _files_below(path):
        members.setdefault(_split_of(file.relative_to(path)), []).append(file)
    return {
        name: partial(FileSource, f"{path} ({name}, {len(files)} files)", path, tuple(files), text_column)
        for name, files in sorted(members.items())
    }


def _check_file(path: Path) -> None:
    if kind_of(path) is None:
        raise _missing(path, f"is none of {READABLE}", "convert it, or name it by what it holds")
    if path.stat().st_size == 0:
        raise ProjectError("DAT004", "is empty", "give a file with text in dataset.path", str(path))


def _files_below(root: Path) -> list[Path]:
    found = []
    others: Counter[str] = Counter()
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names):
            if file.name.startswith(".") or kind_of(file) is None:
                others[file.suffix or file.name] += 1
            else:
                found.append(file)
    if not found:
        seen = ", ".join(f"{count} x {suffix}" for suffix, count in others.most_common(5)) or "nothing"
        raise _missing(root, f"holds none of {READABLE}; it holds {seen}", "point dataset.path at text")
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
