"""JSON-lines files: appended during a run, truncated when it resumes from an earlier step.

Imports no torch: preflight probes read these files too.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.atomic_write import open_replacement
from neobert.runfiles.json_values import is_count, parse_object

Row = dict[str, Any]


class JsonlWriter:
    """Append-only writer of a JSON-lines file, unbuffered: readers see each line at once."""

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        """Open the file for appending.

        `limit_bytes`: size above which the file is renamed to `rotated_path(path)` and a new one is started;
        None: no limit.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._limit_bytes = path, limit_bytes
        self._file = path.open("ab", buffering=0)

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line; a line that was only partly written is removed.

        Raises `ValueError` for NaN and infinity, and `OSError` on a full disk.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        if self._limit_bytes is not None and self._is_full(len(line), self._limit_bytes):
            self._rotate()
        before = self._file.tell()
        try:
            written = self._file.write(line)
        except OSError as error:
            error.filename = self._file.name  # a failed write names no file
            raise
        if written != len(line):
            self._file.seek(self._file.truncate(before))  # else the next line is appended to a partial one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and ignore errors. May be called more than once."""
        with suppress(OSError):
            self._file.close()

    def _is_full(self, more_bytes: int, limit_bytes: int) -> bool:
        size = self._file.tell()
        return bool(size) and size + more_bytes > limit_bytes

    def _rotate(self) -> None:
        """Rename the full file and open a new one. Raises `OSError`; the old file then stays in use."""
        with suppress(FileNotFoundError):  # renamed by the last attempt, which then failed to open a new file
            self._path.replace(rotated_path(self._path))
        full, self._file = self._file, self._path.open("ab", buffering=0)
        with suppress(OSError):
            full.close()


def rotated_path(path: Path) -> Path:
    """Return the path of the rotated file, which holds the lines that precede `path`."""
    return path.with_name(f"{path.name}.1")


def read_rows(path: Path) -> list[Row]:
    """Read all rows. A line cut short by a crash is skipped; a missing file gives an empty list."""
    return list(iter_rows(path))


def iter_rows(path: Path) -> Iterator[Row]:
    """Yield the rows one at a time, without loading the file. Skips like `read_rows`."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from (row for row in map(parse_object, file) if row is not None)


def keep_rows(path: Path, is_kept: Callable[[Row], bool]) -> None:
    """Rewrite the file atomically without rows that fail `is_kept` and without incomplete lines."""
    if not path.exists():
        return
    with path.open("rb") as before, open_replacement(path) as file:
        rows = ((line, parse_object(line)) for line in before)
        file.writelines(line.rstrip(b"\n") + b"\n" for line, row in rows if row is not None and is_kept(row))
        file.flush()
        os.fsync(file.fileno())


def trim_heartbeat(path: Path, resumed_step: int | None) -> int:
    """Drop heartbeat lines of steps after `resumed_step`; return the next `seq`.

    `resumed_step` is None for a fresh start: all lines are dropped.
    """
    files = (rotated_path(path), path)
    last_seq = max((row.get("seq", -1) for file in files for row in iter_rows(file)), default=-1)
    for file in files:
        keep_rows(file, lambda row: resumed_step is not None and _row_step(row) <= resumed_step)
    return last_seq + 1


def _row_step(row: Row) -> int:
    """Return a row's step, or -1 if it has none; heartbeats before the first step have none."""
    step = row.get("step")
    return step if is_count(step) else -1
