"""JSON-lines files: appended during a run, truncated when it resumes from an earlier step.

Imports no torch: probes read what a run left.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.atomic_write import replacing
from neobert.runfiles.json_values import parse_object
from neobert.runfiles.run_dir import METRICS

Row = dict[str, Any]


class JsonlWriter:
    """A file of JSON lines that grows at the end. A reader sees every line as soon as it is appended."""

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: a file that would exceed it is renamed to `rotated(path)`, which is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._limit_bytes = path, limit_bytes
        self._file = path.open("ab", buffering=0)

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line atomically: completely or not at all.

        Raises `ValueError` for a value that JSON lacks, such as NaN, and `OSError` on a full disk.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        if self._limit_bytes is not None and self._is_full(len(line), self._limit_bytes):
            self._rotate()
        before = self._file.tell()
        if self._file.write(line) != len(line):
            self._file.seek(self._file.truncate(before))  # else the next line would continue a torn one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def sync(self) -> None:
        """Sync the file to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; a second call does nothing. Errors are ignored: what matters was synced."""
        with suppress(OSError):
            self._file.close()

    def _is_full(self, more_bytes: int, limit_bytes: int) -> bool:
        size = self._file.tell()
        return bool(size) and size + more_bytes > limit_bytes

    def _rotate(self) -> None:
        """Rename the full file and open a new one. On failure the file stays open for the next attempt."""
        with suppress(FileNotFoundError):  # renamed by the last attempt, which then failed to open a new file
            self._path.replace(rotated(self._path))
        full, self._file = self._file, self._path.open("ab", buffering=0)
        with suppress(OSError):
            full.close()


def rotated(path: Path) -> Path:
    """Return the file that holds the lines before the first line of `path`."""
    return path.with_name(f"{path.name}.1")


def read_rows(path: Path) -> list[Row]:
    """Read the complete lines; a line that a crash cut short is skipped. A missing file has none."""
    return list(iter_rows(path))


def iter_rows(path: Path) -> Iterator[Row]:
    """Yield the complete lines one at a time, for files of any length."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from (row for row in map(parse_object, file) if row is not None)


def keep_rows(path: Path, is_kept: Callable[[Row], bool]) -> None:
    """Drop the lines that fail `is_kept`, and torn lines. Atomic, in constant memory."""
    if not path.exists():
        return
    with path.open("rb") as before, replacing(path) as file:
        rows = ((line, parse_object(line)) for line in before)
        file.writelines(line.rstrip(b"\n") + b"\n" for line, row in rows if row is not None and is_kept(row))
        file.flush()
        os.fsync(file.fileno())


def trim_metrics(run_dir: Path, first_open_step: int) -> None:
    """Drop the lines that this session will write again, from `Progress.first_open_step` on."""
    keep_rows(run_dir / METRICS, lambda row: _step(row) < first_open_step)


def trim_heartbeat(path: Path, resumed_step: int | None) -> int:
    """Drop the beats of steps that will be repeated; return the number of the next beat.

    `resumed_step` is None for a fresh start, which keeps none.
    """
    files = (rotated(path), path)
    last_seq = max((row.get("seq", -1) for file in files for row in iter_rows(file)), default=-1)
    for file in files:
        keep_rows(file, lambda row: resumed_step is not None and _step(row) <= resumed_step)
    return last_seq + 1


def _step(row: Row) -> int:
    """Return a line's step; -1, which every resume keeps, for a beat before the first step was known."""
    step = row.get("step")
    return -1 if step is None else int(step)
