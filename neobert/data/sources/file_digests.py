"""Content digests of files, cached so that unchanged files are not read again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.atomic_write import write_atomically
from neobert.data.sources.unreadable import unopened_error

DescribeFile = Callable[[Path], list[Any]]
FOLDER = ".digests"
# An edit within the resolution of a file system's times is not detected. The coarsest resolution is 2 s.
SETTLED_S = 2.0
_WORTH_A_LINE_BYTES = 1 << 30
_END_BYTES, _SHORT_END_BYTES = 2**16, 2**12
log = logging.getLogger(__name__)


def describe_by_ends(path: Path) -> list[Any]:
    """Return size, modification time and a hash of the first and last 64 KiB, for text that is streamed."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns, hash_ends(path)]


def size_and_end_digest(path: Path) -> list[Any]:
    """Return size and a hash of the first and last 4 KiB, for text that a process reads only in part."""
    return [path.stat().st_size, hash_ends(path, _SHORT_END_BYTES)]


def hash_ends(path: Path, num_bytes: int = _END_BYTES) -> str:
    """Hash the first and the last `num_bytes` of a file. Raises DAT001 if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(num_bytes)
            file.seek(max(len(head), os.fstat(file.fileno()).st_size - num_bytes))
            return _new_blake2b(head + file.read()).hexdigest()
    except OSError as error:
        raise unopened_error(path, error) from error


class FileDigests:
    """Digests of whole files, cached in a folder with the file state for which each digest is valid.

    The state is size, modification time, inode and inode change time (ctime). Programs can set the
    modification time of a file that they edited, but not its ctime. After `chmod`, `touch` or a copy, the
    file is read once more and has the same digest.

    Args:
        new_digest: hash constructor; use a separate folder for each algorithm.
    """

    def __init__(self, folder: Path, new_digest: Callable[[], Any] | None = None) -> None:
        self._folder, self._new_digest = folder, new_digest or _new_blake2b

    def describe(self, path: Path) -> list[Any]:
        """Return [size in bytes, digest] of a file. Raises DAT001 if the file cannot be read."""
        try:
            state = _file_state(path)
            digest = self._cached_digest(path, state) or self._compute_digest(path, state)
        except OSError as error:
            raise unopened_error(path, error) from error
        return [state[0], digest]

    def _cached_digest(self, path: Path, state: list[int]) -> str | None:
        try:
            kept = json.loads(self._entry_path(path).read_text(encoding="ascii"))
            return str(kept["digest"]) if kept["state"] == state else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _compute_digest(self, path: Path, state: list[int]) -> str:
        if state[0] >= _WORTH_A_LINE_BYTES:
            log.info("computing the digest of %s: %.1f GiB", path, state[0] / 2**30)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, self._new_digest).hexdigest()
        is_settled = time.time() - max(os.stat(path).st_ctime, os.stat(path).st_mtime) > SETTLED_S
        if is_settled and _file_state(path) == state:
            self._cache_digest(path, {"state": state, "digest": digest})
        return digest

    def _cache_digest(self, path: Path, entry: dict[str, Any]) -> None:
        """Cache a digest; after a write error, the file is read again next time."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._entry_path(path), json.dumps(entry).encode("ascii"))

    def _entry_path(self, path: Path) -> Path:
        return self._folder / f"{_new_blake2b(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def _file_state(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _new_blake2b(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)
