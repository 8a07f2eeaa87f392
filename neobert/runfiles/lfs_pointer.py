"""Pointers of Git LFS, which a clone without Git LFS has in place of large files."""

from __future__ import annotations

import shlex
from pathlib import Path

from neobert.errors import ProjectError

POINTER_START = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(path: Path) -> bool:
    """Return whether the file is a pointer, not the content."""
    with path.open("rb") as opened:
        return opened.read(len(POINTER_START)) == POINTER_START


def lfs_pointer_error(path: Path, code: str) -> ProjectError:
    """Return the error for a pointer, with the command that downloads the content."""
    hint = f"download the content: git -C {shlex.quote(str(path.absolute().parent))} lfs pull"
    return ProjectError(code, "is a pointer of Git LFS, not the content of the file", hint, str(path))
