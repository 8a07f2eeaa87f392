"""Paths and glob patterns of `dataset.path`, resolved to files and folders."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neobert.data.sources.unreadable import unreadable

PLACE = "dataset.path"
_LIST = "set dataset.path to a list, written as [first.txt, second.txt]"
_SHELL = "set dataset.path to an existing file or folder, or to a pattern such as novels/*.txt"


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder to read.

    Attributes:
        base: folder that the names of its files are relative to. Names determine the split, and identify the
            text.
        is_named: whether the path itself is given, not matched by a pattern.
    """

    path: Path
    base: Path
    is_named: bool = True


def places_of(paths: Sequence[str]) -> tuple[Place, ...]:
    """Resolve paths and patterns. An existing path is never a pattern, so `a[1].txt` can be read.

    The files of a single folder are named below that folder. With several paths, each name starts with the
    last part of its path, so that `[data/train, data/test]` is two splits.

    Raises DAT001 for a path that does not exist, and for a pattern that matches nothing.
    """
    given = [Path(os.path.expanduser(path)) for path in paths]
    if len(given) == 1 and given[0].exists():
        (path,) = given
        return (Place(path, path if path.is_dir() else path.parent),)
    return tuple(place for path in given for place in _resolved(path))


def _resolved(path: Path) -> Iterator[Place]:
    if path.exists():
        yield Place(path, path.parent)
        return
    if not glob.has_magic(str(path)):
        raise unreadable(path, "does not exist", _LIST if "," in path.name else _SHELL)
    matches = sorted(glob.glob(str(path), recursive=True))
    if not matches:
        raise unreadable(path, "matches no file", _SHELL)
    base = Path(*_literal_parts(path))
    yield from (Place(Path(match), base, is_named=False) for match in matches)


def _literal_parts(path: Path) -> Iterator[str]:
    """Yield the parts of a pattern before the first part with a wildcard."""
    for part in path.parts[:-1]:
        if glob.has_magic(part):
            return
        yield part
