"""Readers of JSON files of a run directory, which are untrusted: large, damaged or not regular files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from launcher.io.files import open_regular
from launcher.rundir.records import LONGEST_LINE_BYTES, Record

BLOCK_BYTES = 2**19
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


def batches(path: Path) -> Iterator[tuple[list[Record], int]]:
    """Yield per block the rows that have a step, in ascending order, and the number of damaged lines."""
    with suppress(OSError), open_regular(path, follows_link=False) as file:
        for block in _whole_lines(file):
            found = _parse(block)
            rows = [row for row in found if type(row) is dict and _has_step(row)]
            rows.sort(key=itemgetter("step"))  # already sorted unless the file was edited
            yield rows, sum(1 for row in found if row is None)


def step_of(row: Record) -> int:
    """Return the step of a row; 0 if there is none."""
    return int(row["step"]) if _has_step(row) else 0


def first_step(path: Path) -> int:
    """Return the step of the first row; 0 if there is none."""
    return next((rows[0]["step"] for rows, _ in batches(path) if rows), 0)


def is_plain(path: Path) -> bool:
    """Return whether the path is a regular file that can be read."""
    with suppress(OSError), open_regular(path, follows_link=False):
        return True
    return False


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of whole lines. A line that is still being written, or too long, is dropped."""
    rest = b""
    while block := file.read(BLOCK_BYTES):
        lines, found, rest_of_block = (rest + block).rpartition(b"\n")
        rest = rest_of_block if len(rest_of_block) < LONGEST_LINE_BYTES else b""
        if found:
            yield lines


def _parse(block: bytes) -> list[object]:
    """Parse lines of JSON; None for a damaged line.

    Parsing the block as one array takes half the time of one call per line.
    """
    try:
        found = json.loads(b"[" + block.replace(b"\n", b",") + b"]")
        # A torn line may take others into its list, and a line of two values make up for their number.
        if len(found) == block.count(b"\n") + 1 and all(isinstance(each, dict) for each in found):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [_parse_line(line) for line in block.split(b"\n")]


def _parse_line(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _has_step(row: Record) -> bool:
    step = row.get("step")
    return type(step) is int and 0 <= step < 2**63


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)
