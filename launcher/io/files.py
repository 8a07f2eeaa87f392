"""Atomic writing of files, with one clear error if the file system fails."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from neobert.atomic_write import write_atomically
from neobert.errors import EXIT_CHECK_FAILED, ProjectError

ANOTHER_PLACE = "make room or choose another folder"


def absolute(path: str, key: str) -> Path:
    """Return the absolute path that a key names. Raises ProjectError for an impossible or broken one."""
    try:
        found = Path(path).expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found.lstat()
    except UnicodeEncodeError:  # the locale's fault, and reported as such
        raise
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProjectError(
            "unusable-path", f"is not a valid path: {reason}", "choose another folder", key
        ) from None
    _require_whole_links(found, key)
    return found


def _require_whole_links(path: Path, key: str) -> None:
    """Raise ProjectError for a dangling link, e.g. to a disk that is not mounted."""
    for each in (path, *path.parents):
        if os.path.islink(each) and not os.path.exists(each):
            message = f"{each} is a link to {os.readlink(each)}, which cannot be reached"
            raise ProjectError("unusable-path", message, "fix the link, or choose another folder", key)


@contextmanager
def writing(place: Path, hint: str = ANOTHER_PLACE) -> Iterator[None]:
    """Convert an error of the file system to one sentence. Raises ProjectError."""
    try:
        yield
    except OSError as error:
        raise ProjectError(
            code="not-writable",
            message=f"cannot be written: {error.strerror or error}",
            hint=hint,
            place=str(place),
            exit_code=EXIT_CHECK_FAILED,
        ) from None


def make_folder(folder: Path, hint: str = ANOTHER_PLACE) -> Path:
    """Create a folder. Raises ProjectError where that cannot be."""
    with writing(folder, hint):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def require_writable(path: Path | None, hint: str = ANOTHER_PLACE) -> None:
    """Raise ProjectError if a requested file cannot be written, before minutes are spent on it."""
    if path is not None:
        import tempfile

        with writing(path, hint), tempfile.TemporaryFile(dir=path.parent):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old content or the new. Raises ProjectError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes in one step. Raises ProjectError."""
    with writing(path):
        write_atomically(path, content)


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON, indented, with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, or raise OSError: reading a pipe or a device might never return."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


RUN_FILE_SUFFIXES = (".yaml", ".yml", ".toml", ".json")
