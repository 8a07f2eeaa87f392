"""Lock for the preparation of data: one process prepares, the others wait."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neobert.data.store.token_store import convert_write_errors
from neobert.errors import ProjectError

POLL_S = 0.2
# The owner touches its lock file with every batch; after this time without a touch, it counts as hung.
SILENCE_LIMIT_S = 1800.0
_BUSY = (errno.EACCES, errno.EAGAIN)
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)


@contextmanager
def build_lock(path: Path, silence_limit_s: float = SILENCE_LIMIT_S) -> Iterator[Callable[[], None]]:
    """Wait for the lock and hold it; yields a function that reports progress to waiting processes.

    The kernel releases the lock when a process ends. Raises DAT009 if the owner shows no progress for too
    long, if the file system has no locks, or if the path of the lock file is not a regular file.
    """
    with convert_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _open_lock_file(path)
    try:
        owner = _LockOwner(handle, path)
        while not _try_lock(handle, path):
            owner.check(silence_limit_s)
            time.sleep(POLL_S)
        with convert_write_errors(path.parent):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield lambda: _touch(path)
    finally:
        os.close(handle)


def _open_lock_file(path: Path) -> int:
    """Open or create the lock file. Raises DAT009 for a link and for anything but a regular file.

    Other users may write to a shared cache: through a symbolic or hard link at this path, this process would
    truncate another file of its user.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_a_lock_error(path) from None
        raise
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(handle)
        raise _not_a_lock_error(path)
    return handle


def _not_a_lock_error(path: Path) -> ProjectError:
    hint = "remove this path, or set dataset.cache_dir or NEOBERT_CACHE to another folder"
    return ProjectError(
        "DAT009",
        "is not a regular file with one hard link, so it cannot be the lock file of this cache",
        hint,
        str(path),
    )


def _touch(path: Path) -> None:
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError as error:
        hint = "run the command again, and keep other programs from deleting files in this folder"
        raise ProjectError("DAT009", "was removed during preparation", hint, str(path.parent)) from error


def _try_lock(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise ProjectError(
            "DAT009",
            f"the file system cannot lock files: {error.strerror}",
            "set dataset.cache_dir or NEOBERT_CACHE to a folder on a local disk",
            str(path),
        ) from error
    return True


class _LockOwner:
    """The process that holds the lock, and the monotonic time of its last progress."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle, self._path = handle, path
        self._sign, self._heard_at_s = self._last_touch_ns(), time.monotonic()

    def check(self, silence_limit_s: float) -> None:
        """Raise DAT009 if the owner has made no progress for longer than the limit."""
        if (sign := self._last_touch_ns()) != self._sign:
            self._sign, self._heard_at_s = sign, time.monotonic()
        if time.monotonic() - self._heard_at_s > silence_limit_s:
            name = os.pread(self._handle, 200, 0).decode("utf-8", "replace") or "another process"
            raise ProjectError(
                "DAT009",
                f"{name} is preparing this data and made no progress for {silence_limit_s:.0f} s",
                "stop that process and run the command again",
                str(self._path),
            )

    def _last_touch_ns(self) -> int:
        return os.fstat(self._handle).st_mtime_ns
