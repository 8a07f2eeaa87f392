"""Atomic writes and checks of paths; errors of the file system become ProjectError."""

from __future__ import annotations

import errno
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from neobert.atomic_write import NO_ROOM, write_atomically
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.hub_names import is_hub_name

ANOTHER_FOLDER = "choose another folder"


def expand_user(path: str | Path) -> Path:
    """Expand `~`; a path that starts with an unknown user (`~nouser`) is returned unchanged."""
    return Path(os.path.expanduser(path))


def absolute_path(path: str, key: str) -> Path:
    """Return the absolute path of a value of config key `key`, with `~` expanded.

    Raises ProjectError for an invalid path and for a dangling link.
    """
    try:
        absolute = Path(path).expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            absolute.lstat()
    except UnicodeEncodeError:  # reported elsewhere as an error of the locale
        raise
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProjectError(
            "unusable-path", f"the value is not a valid path: {reason}", "choose another folder", key
        ) from None
    _refuse_dangling_links(absolute, key)
    return absolute


def _refuse_dangling_links(path: Path, key: str) -> None:
    """Raise ProjectError for a dangling link, e.g. to a disk that is not mounted."""
    for each in (path, *path.parents):
        if os.path.islink(each) and not os.path.exists(each):
            message = f"{each} is a link to {os.readlink(each)}, which cannot be reached"
            raise ProjectError("unusable-path", message, "fix the link, or choose another folder", key)


@contextmanager
def convert_write_errors(path: Path, hint: str = ANOTHER_FOLDER) -> Iterator[None]:
    """Convert an OSError inside the `with` block to a ProjectError about this path."""
    try:
        yield
    except OSError as error:
        if hint == ANOTHER_FOLDER and error.errno in NO_ROOM:
            hint = f"free space, or {ANOTHER_FOLDER}"
        raise ProjectError(
            code="not-writable",
            message=f"this path cannot be written: {error.strerror or error}",
            hint=hint,
            place=str(path),
            exit_code=EXIT_CHECK_FAILED,
        ) from None


def make_folder(folder: Path, hint: str = ANOTHER_FOLDER) -> Path:
    """Create a folder with its parents and return it.

    Raises ProjectError if that fails or the folder is in a checkpoint.
    """
    _refuse_in_checkpoint(folder)
    with convert_write_errors(folder, hint):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def results_folder(folder: Path) -> Iterator[None]:
    """Create a folder for the files that the `with` block writes.

    A new folder that is still empty after an error is removed. Raises ProjectError if it cannot be created.
    """
    is_new = not folder.exists()
    make_folder(folder)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # it holds files by now
                folder.rmdir()
        raise


def require_writable(path: Path | None, hint: str = ANOTHER_FOLDER) -> None:
    """Raise ProjectError if an output file cannot be written or would replace a run's record; None passes."""
    if path is not None:
        import tempfile

        from neobert.runfiles.run_dir import CONFIG, MANIFEST, METRICS, OUTCOME, PROVENANCE, RESOLVED

        _refuse_in_checkpoint(path)
        records = (CONFIG, MANIFEST, METRICS, OUTCOME, PROVENANCE, RESOLVED)
        if path.name in records and (path.parent / RESOLVED).is_file():
            message = "the file is a record of the run, which an output must not replace"
            raise ProjectError("not-writable", message, hint, str(path), EXIT_USAGE)
        if not path.parent.exists():
            hint = f"create its folder: mkdir -p {shlex.quote(str(path.parent))}"
        with convert_write_errors(path, hint), tempfile.TemporaryFile(dir=path.parent):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():  # root would replace /dev/stdout by a file
                raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")


def _refuse_in_checkpoint(path: Path) -> None:
    """Raise ProjectError for a path in the folder of a checkpoint, which another file would make unusable."""
    from neobert.runfiles.checkpoint.manifest import FILE_NAME  # what hashes files takes time to import

    for folder in (path, *path.absolute().parents):
        if (folder / FILE_NAME).is_file():
            message = "the folder is a checkpoint, which may contain only the files of the save"
            hint = "choose a path outside the checkpoint"
            raise ProjectError("occupied-folder", message, hint, str(folder), EXIT_USAGE)


def require_existing(path: Path, option: str, hint: str = "") -> None:
    """Raise ProjectError if a file or folder that an option names does not exist."""
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        hint = hint or f"pass an existing file or folder as {option}"
        raise ProjectError("unusable-path", "no such file or folder", hint, str(path), EXIT_USAGE)


def require_source(path: Path, option: str, hint: str = "") -> str:
    """Return the absolute path of data, or the name of a Hub dataset unchanged.

    Raises ProjectError if the path does not exist.
    """
    if is_hub_name(str(path)):
        return str(path)
    require_existing(expand_user(path), option, hint)
    return str(expand_user(path).absolute())


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically. Raises ProjectError if the path cannot be written."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes atomically. Raises ProjectError if the path cannot be written."""
    with convert_write_errors(path):
        write_atomically(path, content)


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write indented JSON with sorted keys atomically. Raises ProjectError if the path cannot be written."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


@contextmanager
def open_regular(path: Path, *, follows_link: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Raises OSError for any other file, as reading a pipe may block.

    Args:
        follows_link: whether the path may be a link, which can lead out of its folder.
    """
    no_link = 0 if follows_link else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | no_link)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


RUN_FILE_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def why_unreadable(file: Path) -> str:
    """Return the reason why a file cannot be read; empty if it can."""
    try:
        with file.open("rb") as handle:
            handle.read(1)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""


def private_folder(name: str) -> Path | None:
    """Create `~/.cache/neobert/NAME`, or below $XDG_CACHE_HOME, and return it.

    Returns None if there is no home directory or it is not writable.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser() / "neobert" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder


def why_not_private(folder: Path) -> str:
    """Return the reason why other users may be able to write to the folder; empty if only this user can."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} can be written to by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
