"""Rows out of one file: plain text, a table or parquet, plain or compressed.

A document of a `.txt` file is a run of lines between blank lines. A file without blank lines is one long
run, which `dataset.long_documents` then cuts to the context; runs beyond `MAX_RUN_CHARACTERS` are cut there
first, at the end of a line, or at white space inside a line that is longer. A row of the other kinds is a
document. No file has to fit in memory, and of a `.txt` file no line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO

from neobert.data.sources import parquet_rows, table_rows
from neobert.data.sources.compression import COMPRESSIONS, opened
from neobert.data.sources.lines import line_pieces
from neobert.data.sources.rows import TEXT as TEXT_FIELD
from neobert.data.sources.rows import Row, RowFormat, check_plain_text
from neobert.data.sources.unreadable import unreadable

TEXT = ".txt"
KINDS = (TEXT, *table_rows.KINDS, parquet_rows.KIND)
MAX_RUN_CHARACTERS = 1 << 20
_SEARCHED_CHARACTERS = 1 << 16
_END_BYTES = 2**16


def kind_of(path: Path) -> str | None:
    """Return the suffix of the format, without that of the compression; None for a file that is not read."""
    suffix = suffix_of(path)
    return suffix if suffix in KINDS else None


def suffix_of(path: Path) -> str:
    """Return the last suffix that is not that of a compression, in lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_rows(path: Path, rows: RowFormat) -> Iterator[Row]:
    """Yield the rows of a file in order.

    Raises DAT001 for what cannot be read, DAT011 for its columns.
    """
    kind = kind_of(path)
    assert kind is not None, path
    with opened(path, seekable=kind == parquet_rows.KIND) as handle:
        if kind == TEXT:
            check_plain_text(path, rows)
            yield from ({TEXT_FIELD: text} for text in _paragraphs(handle, path))
        elif kind == parquet_rows.KIND:
            yield from parquet_rows.parquet_rows(handle, path, rows)
        else:
            yield from _table_rows(handle, path, kind, rows)


def column_of(path: Path, rows: RowFormat) -> str | None:
    """Name the columns of the first row's fields; None for a file without columns or rows.

    Raises as `read_rows` does.
    """
    kind = kind_of(path)
    if kind is None or kind == TEXT:
        return None
    with opened(path, seekable=kind == parquet_rows.KIND) as handle:
        if kind == parquet_rows.KIND:
            return ", ".join(parquet_rows.parquet_columns(handle, path, rows).values())
        for place, values in table_rows.rows_of(handle, path, kind, rows):
            return ", ".join(rows.columns(values, place).values())
    return None


def digest_of_ends(path: Path) -> str:
    """Hash the first and the last 64 KiB of a file. Raises DAT001 where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_END_BYTES)
            file.seek(max(len(head), os.fstat(file.fileno()).st_size - _END_BYTES))
            return blake2b(head + file.read(), digest_size=16).hexdigest()
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise unreadable(path, message, "check path and permissions") from error


def _paragraphs(handle: IO[bytes], path: Path) -> Iterator[str]:
    run: list[str] = []
    size = 0
    for piece in line_pieces(handle, path):
        is_blank = not piece.text.strip()
        if run and piece.is_start and (is_blank or size + len(piece.text) > MAX_RUN_CHARACTERS):
            yield "".join(run).strip("\r\n")
            run, size = [], 0
        if is_blank and not run:
            continue
        run.append(piece.text)
        size += len(piece.text)
        if size > MAX_RUN_CHARACTERS:
            *whole, rest = _cut_at_spaces("".join(run))
            yield from whole
            run, size = [rest] if rest else [], len(rest)
    if run:
        yield "".join(run).strip("\r\n")


def _cut_at_spaces(run: str) -> Iterator[str]:
    """Cut a run that is inside a line; the white space at a cut is left out, as the end of a line is."""
    start = 0
    while len(run) - start > MAX_RUN_CHARACTERS:
        stop = start + MAX_RUN_CHARACTERS
        searched = range(stop, max(start, stop - _SEARCHED_CHARACTERS), -1)
        cut = next((place for place in searched if run[place].isspace()), None)
        yield run[start : stop if cut is None else cut]
        start = stop if cut is None else cut + 1
    yield run[start:]


def _table_rows(handle: IO[bytes], path: Path, kind: str, rows: RowFormat) -> Iterator[Row]:
    columns: dict[str, str] = {}
    needed: set[str] = set()
    for place, values in table_rows.rows_of(handle, path, kind, rows):
        if not columns:
            columns = rows.columns(values, place)
            needed = {*columns.values()}
        elif not values.keys() >= needed:
            rows.chosen(columns).columns(values, place)  # raises: the first row has them all
        row = rows.row(values, columns, place)
        yield {name: _encodable(each) if isinstance(each, str) else each for name, each in row.items()}


def _encodable(text: str) -> str:
    """Replace half of a surrogate pair, which JSON can spell and no encoding can write."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
