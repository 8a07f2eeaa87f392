"""Readers of JSON files of a run directory, which are untrusted: large, damaged or not regular files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.io.files import open_regular
from launcher.rundir.records import LONGEST_LINE_BYTES, Record
from neobert.runfiles.json_values import is_count

MAX_DOCUMENT_BYTES = 64 * 2**20
MAX_DEPTH = 32
"""Limit of nesting. Files of a run have fewer than ten levels; formatting hundreds overflows the stack."""


def read_document(folder: Path, name: str) -> Record:
    """Return a JSON object of the run directory; empty if it is missing, damaged, too large or a link."""
    try:
        with open_regular(folder / name, follows_link=False) as file:
            content = json.loads(file.read(MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and not _is_deeper(content, MAX_DEPTH) else {}


def rows_of(path: Path) -> Iterator[Record | None]:
    """Yield the rows that have a step, and None for each damaged line. A line without an end is left out."""
    with suppress(OSError), open_regular(path, follows_link=False) as file:
        while line := file.readline(LONGEST_LINE_BYTES):
            if not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = file.readline(LONGEST_LINE_BYTES)
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if row is None or (type(row) is dict and is_count(row.get("step"))):
                yield row


def step_of(row: Record) -> int:
    """Return the step of a row; 0 if there is none."""
    return row["step"] if is_count(row.get("step")) else 0


def first_step(path: Path) -> int:
    """Return the step of the first row; 0 if there is none."""
    return next((row["step"] for row in rows_of(path) if row), 0)


def is_plain(path: Path) -> bool:
    """Return whether the path is a regular file that can be read."""
    with suppress(OSError), open_regular(path, follows_link=False):
        return True
    return False


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)
