"""Rows of one file: plain text, a table or parquet, plain or compressed.

A document of a `.txt` or Markdown file is a paragraph: the lines between blank lines, or a line of its own
with `dataset.document_per_line`. Line endings become LF, as in `datasets`. A file without blank lines is
one long document, which `dataset.long_documents` later splits or truncates; documents beyond
`MAX_RUN_CHARACTERS` are split there first, at the end of a line, or at whitespace inside a longer line. In
other formats, each row is a document. Neither files nor lines of a `.txt` file have to fit in memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any

from neobert.config.text_formats import COMPRESSIONS, PARQUET, TEXT, TOKEN_IDS, text_format
from neobert.data.sources import table_rows
from neobert.data.sources.lines import line_pieces, whole_lines
from neobert.data.sources.rows import TEXT as TEXT_FIELD
from neobert.data.sources.rows import Row, RowFormat, UnknownLabelError, check_plain_text
from neobert.data.sources.token_shards import shard_rows
from neobert.data.sources.unreadable import unopened_error, unreadable_error
from neobert.errors import ProjectError
from neobert.plurals import counted, listed
from neobert.runfiles.lfs_pointer import is_lfs_pointer, lfs_pointer_error

MAX_RUN_CHARACTERS = 1 << 20
_SEARCHED_CHARACTERS = 1 << 16
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
ALL_COLUMNS = RowFormat(())
LABEL_CODE = "DAT020"
LABELLED_ROWS, _LISTED_LABELS, _LABEL_CHARACTERS = 10_000, 10, 40
"""Rows that are searched for labels and refused rows after an error, and bounds of the list of labels."""


def read_rows(path: Path, rows: RowFormat, row_group: int | None = None) -> Iterator[Row]:
    """Yield the rows of a file, or of one Parquet row group, in order.

    Raises DAT001 for an unreadable file, DAT011 for missing or ambiguous columns, DAT020 for invalid labels.
    """
    try:
        yield from _iterate_rows(path, rows, row_group)
    except UnknownLabelError as error:
        raise replace(error, message=f"{error.message}; {_describe_labels(path, rows)}") from error
    except ProjectError as error:
        if error.code == LABEL_CODE and (refused := _describe_refused_rows(path, rows)):
            raise replace(error, message=f"{error.message}; {refused}") from error
        raise


def _describe_refused_rows(path: Path, rows: RowFormat) -> str:
    """Return as text how many of the first rows of a table are refused; empty for fewer than two."""
    table, columns = read_table(path, rows), dict[str, str]()
    number, num_refused, part = 0, 0, "the first "
    with suppress(ProjectError):  # a malformed row ends the count
        for location, values in islice(table, LABELLED_ROWS):
            number += 1
            columns = columns or rows.columns(values, location)
            try:
                rows.row(values, columns, location)
            except (ProjectError, KeyError):  # KeyError: the row lacks a column
                num_refused += 1
        part = "" if next(table, None) is None else part
    return f"{num_refused:,} of {part}{counted(number, 'row')} are refused" if num_refused > 1 else ""


def _describe_labels(path: Path, rows: RowFormat) -> str:
    """Return the different labels in the first rows of a file as text."""
    fields = [replace(field, read=lambda cell, _: cell) for field in rows.fields if not field.is_text]
    unread = replace(rows, fields=tuple(fields), check=None)
    head, part, found = _iterate_rows(path, unread), "the first rows", set[str]()
    with suppress(ProjectError):  # of a later row: the labels up to there are listed
        for row in islice(head, LABELLED_ROWS):
            for cell in row.values():
                labels = cell if isinstance(cell, list | tuple) else [cell]
                found.update(str(each)[:_LABEL_CHARACTERS] for each in labels if each not in (None, ""))
        part = "the file" if next(head, None) is None else f"the first {LABELLED_ROWS:,} rows"
    return f"labels in {part}: {listed([*map(repr, sorted(found))], _LISTED_LABELS)}"


def _iterate_rows(path: Path, rows: RowFormat, row_group: int | None = None) -> Iterator[Row]:
    kind = text_format(path)
    assert kind is not None, path
    if kind == TOKEN_IDS:
        check_plain_text(path, rows)
        yield from shard_rows(path)
        return
    with open_decompressed(path, seekable=kind == PARQUET) as handle:
        if kind == TEXT:
            check_plain_text(path, rows)
            yield from ({TEXT_FIELD: text} for text in _split_documents(handle, path, rows.document_per_line))
        elif kind == PARQUET:
            yield from table_rows.parquet_rows(handle, path, rows, row_group)
        else:
            yield from _table_rows(handle, path, kind, rows)


def read_table(path: Path, rows: RowFormat = ALL_COLUMNS) -> table_rows.Rows:
    """Yield (location for messages, all values of a row by column). Raises DAT001 for a malformed table."""
    kind = str(text_format(path))
    with open_decompressed(path, seekable=kind == PARQUET) as handle:
        yield from table_rows.read_table_rows(handle, path, kind, rows)


def file_delimiter(path: Path) -> str:
    """Return the delimiter of a CSV or TSV file. Raises DAT001 for a file that cannot be read."""
    with open_decompressed(path) as handle:
        _, header = next(whole_lines(line_pieces(handle, path), path), (1, ""))
    return table_rows.detect_delimiter(header, table_rows.DELIMITERS[str(text_format(path))])


def row_groups(path: Path) -> list[table_rows.RowGroup]:
    """Return the row groups of a Parquet file that is not compressed as a whole."""
    with open_decompressed(path) as handle:
        return table_rows.row_groups(handle, path)


def file_columns(path: Path, rows: RowFormat) -> str | None:
    """Return the column names of the row's fields, comma-separated; None for a file without columns or rows.

    Raises DAT001 for a file that cannot be read, DAT011 for missing or ambiguous columns.
    """
    kind = text_format(path)
    if kind in (None, TEXT, TOKEN_IDS):
        return None
    with open_decompressed(path, seekable=kind == PARQUET) as handle:
        if kind == PARQUET:
            return ", ".join(table_rows.parquet_columns(handle, path, rows).values())
        for location, values in table_rows.read_table_rows(handle, path, kind, rows):
            return ", ".join(rows.columns(values, location).values())
    return None


def _split_documents(handle: IO[bytes], path: Path, is_per_line: bool) -> Iterator[str]:
    """Yield runs of lines between blank lines, or with `is_per_line` each line; neither is blank."""
    run: list[str] = []
    size = 0
    for piece in line_pieces(handle, path, joins_blank=True):
        text = piece.text.rstrip("\r\n") + "\n" if piece.is_end else piece.text
        is_blank = not text.strip()
        is_over = is_per_line or is_blank or size + len(text) > MAX_RUN_CHARACTERS
        if run and piece.is_start and is_over:
            yield "".join(run).strip("\r\n")
            run, size = [], 0
        if is_blank and not run:
            continue
        run.append(text)
        size += len(text)
        if size > MAX_RUN_CHARACTERS:
            *whole, rest = _split_at_whitespace("".join(run))
            yield from whole
            run, size = [rest] if rest else [], len(rest)
    if run:
        yield "".join(run).strip("\r\n")


def _split_at_whitespace(run: str) -> Iterator[str]:
    """Split text into pieces of at most `MAX_RUN_CHARACTERS`; whitespace at a cut is dropped."""
    start = 0
    while len(run) - start > MAX_RUN_CHARACTERS:
        stop = start + MAX_RUN_CHARACTERS
        searched = range(stop, max(start, stop - _SEARCHED_CHARACTERS), -1)
        cut = next((location for location in searched if run[location].isspace()), None)
        yield run[start : stop if cut is None else cut]
        start = stop if cut is None else cut + 1
    yield run[start:]


def _table_rows(handle: IO[bytes], path: Path, kind: str, rows: RowFormat) -> Iterator[Row]:
    columns: dict[str, str] = {}
    needed: set[str] = set()
    for location, values in table_rows.read_table_rows(handle, path, kind, rows):
        if not columns:
            columns = rows.columns(values, location)
            needed = {*columns.values()}
        elif not values.keys() >= needed:
            rows.with_columns(columns).columns(values, location)  # raises DAT011 for the missing column
        row = rows.row(values, columns, location)
        yield {
            name: replace_surrogates(each) if isinstance(each, str) else each for name, each in row.items()
        }


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and UTF-8 cannot encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@contextmanager
def open_decompressed(path: Path, *, seekable: bool = False) -> Iterator[IO[bytes]]:
    """Open a file, decompressed. Raises DAT001 if it cannot be read.

    A compressed file that has to be seekable is decompressed into a temporary file.
    """
    compression = path.suffix.lower()
    try:
        with _open_compressed(path, compression) as handle:
            if compression not in COMPRESSIONS or not seekable:
                yield handle
                return
            import tempfile  # imports the random generators; `lint` of plain text does without

            with tempfile.TemporaryFile() as copy:
                copyfileobj(handle, copy)
                copy.seek(0)
                yield copy
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise _damaged_file_error(path, error) from error
    except OSError as error:
        # The decompressors of bz2 and zstd report damaged data as an OSError without a number.
        if error.errno is None and compression in COMPRESSIONS:
            raise _damaged_file_error(path, error) from error
        raise unopened_error(path, error) from error


def _open_compressed(path: Path, compression: str) -> Any:
    if compression == ".zst":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")
    return _OPENERS.get(compression, open)(path, "rb")


def _damaged_file_error(path: Path, error: Exception) -> Exception:
    if is_lfs_pointer(path):
        return lfs_pointer_error(path, "DAT001")
    name = COMPRESSIONS[path.suffix.lower()]
    hint = f"copy the file again, or rename the file without {path.suffix} if it is not compressed"
    return unreadable_error(path, f"the {name} data is truncated or corrupt ({error})", hint)
