"""Atomic writes of files, and why a write failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def describe_write_error(error: OSError) -> str:
    """Return the message for a file that cannot be written."""
    return (
        "the disk is full"
        if error.errno in NO_ROOM
        else f"the output cannot be written: {error.strerror or error}"
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see either the old or the new content. Raises OSError."""
    with open_replacement(path) as file:
        file.write(content)


@contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends; after an error, `path` is unchanged.

    The temporary file is in the same folder and opened in exclusive mode, because in a folder that others can
    write to, a symbolic link with its name could point to any file.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
