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

from neobert.counting import counted
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
    found, others = _files_below(path)
    for file in found:
        members.setdefault(_split_of(file.relative_to(path)), []).append(file)
    left_out = f"; not read: {_listed(others)}" if others else ""
    return {
        name: partial(
            FileSource,
            f"{path} ({name}, {counted(len(files), 'file')}{left_out})",
            path,
            tuple(files),
            text_column,
        )
        for name, files in sorted(members.items())
    }


def _check_file(path: Path) -> None:
    if kind_of(path) is None:
        raise _missing(path, f"is none of {READABLE}", "convert it, or name it by what it holds")
    if path.stat().st_size == 0:
        raise ProjectError("DAT004", "is empty", "give a file with text in dataset.path", str(path))


def _files_below(root: Path) -> tuple[list[Path], Counter[str]]:
    """Return the files that can be read, sorted, and how many of which kind are left out."""
    found = []
    others: Counter[str] = Counter()
    for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _is_loop(folder, name)]
        for file in (Path(folder, name) for name in names):
            if file.name.startswith(".") or kind_of(file) is None:
                others[file.suffix or file.name] += 1
            elif _holds_something(file):
                found.append(file)
            else:
                others["empty"] += 1
    if not found:
        seen = _listed(others) or "nothing"
        raise _missing(root, f"holds none of {READABLE}; it holds {seen}", "point dataset.path at text")
    return sorted(found), others


def _is_loop(folder: str, name: str) -> bool:
    """Whether a folder is a link to one that it lies in: what is there is read already."""
    link = Path(folder, name)
    return link.is_symlink() and Path(folder).resolve().is_relative_to(link.resolve())


def _holds_something(file: Path) -> bool:
    """Whether a file has bytes. Raises DAT001 for one of 0 bytes that is cut short, and for a dead link."""
    try:
        size = file.stat().st_size
    except OSError as error:
        fault = "is a link to a file that is not there" if file.is_symlink() else "cannot be looked at"
        raise _missing(file, f"{fault}: {error.strerror}", "bring the file back, or remove it") from error
    if size == 0 and file.suffix.lower() in (".gz", ".parquet"):
        raise _missing(file, f"has 0 bytes, which no whole {file.suffix} has", "copy the file again")
    return size > 0


def _listed(counts: Counter[str]) -> str:
    """Spell the most frequent kinds; the order of a folder's listing is no order."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} x {kind}" for kind, count in ranked[:5])


def _raise(error: OSError) -> None:
    raise _missing(Path(error.filename), f"cannot be listed: {error.strerror}", "check its rights") from error


def _split_of(relative: Path) -> str:
    for folder in relative.parts[:-1]:
        if folder.lower() in ALIASES:
            return ALIASES[folder.lower()]
    return ALIASES.get(re.split(r"[-_.\s]", relative.name.lower(), maxsplit=1)[0], "train")


def _missing(place: Path, message: str, hint: str) -> ProjectError:
    return ProjectError("DAT001", message, hint, str(place))
