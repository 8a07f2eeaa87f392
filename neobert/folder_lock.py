"""Exclusive lock on a folder, for one writing process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class FolderInUseError(Exception):
    """Raised if another process has locked the folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder and lock it inside the `with` block. Raises FolderInUseError if it is locked.

    The lock is released if the process ends. On a file system without locks, nothing is locked.
    """
    descriptor = _open_locked(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_locked(folder: Path) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its owner may remove the folder between any two of these calls
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _lock(descriptor)
                if os.path.samestat(os.fstat(descriptor), folder.stat()):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError from None
    except OSError:
        pass  # a file system without locks
