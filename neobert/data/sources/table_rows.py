"""Rows of JSON lines, JSON arrays, CSV, TSV, CoNLL and parquet files, one at a time."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from neobert.config.text_formats import CONLL, PARQUET
from neobert.data.sources.conll import conll_rows
from neobert.data.sources.lines import MAX_LINE_CHARACTERS, LinePiece, line_pieces, whole_lines
from neobert.data.sources.rows import Row, RowFormat, describe_kind
from neobert.data.sources.squad import is_squad, squad_rows
from neobert.data.sources.unreadable import (
    MARK_BYTES,
    PARQUET_MARK,
    check_first_line,
    check_start,
    unreadable_error,
)
from neobert.plurals import counted

Rows = Iterator[tuple[str, Mapping[str, Any]]]
MAX_ROWS, MAX_BYTES = 1024, 1 << 24
BEGINNING_LINES = 4
MESSAGES = "messages"
"""Column for a row that is a bare list of messages, the only list that is accepted as a row."""
_ONE_PER_LINE = "write one JSON object per line"
_INDENTED = {"{": ".", "[": "'.[]'"}
"""First lines of indented JSON, each with the jq filter that yields its rows."""
_FROM_OBJECT = f"{_ONE_PER_LINE}: jq -c '.[]' in.json > out.jsonl"
_RECORDS = "write one JSON object per line; with pandas: to_json(NAME, orient='records', lines=True)"
_QUOTE_FIELDS = "quote fields that hold the delimiter, a quote or a line end"
_QUOTE_TSV = "set dataset.tsv_quotes to false if quotes are plain characters, or quote fields as CSV does"
_PLAIN_TSV = (  # commands without a run file read TSV in this way too
    "remove tabs and line ends from fields; if they are quoted, set dataset.tsv_quotes to true in a run file"
)
_COMPLETE = "add the missing fields to this line, or remove the line"
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SEPARATING = re.compile("[,;\t|]")
_SWALLOWED = re.compile(r"[\t\r\n\"]")
_PANDAS_COLUMNS = re.compile(r'\s*\{\s*"[^"]*"\s*:\s*\{\s*"0"\s*:')
_NUMBERED_ROWS = re.compile(r'\s*\{\s*"0"\s*:\s*\{')
_SPACE = re.compile(r"[ \t\r\n]*")
_START, _FIRST, _OBJECT, _NEXT, _END = "the array", "its first object", "an object", "a comma", "the end"
# NaN, which is not JSON, is what Python writes for a missing value.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None if name == "NaN" else float(name))
_SEPARATORS = {
    _START: {"[": _FIRST},
    _FIRST: {"]": _END},
    _OBJECT: {},
    _NEXT: {",": _OBJECT, "]": _END},
    _END: {},
}


def read_table_rows(handle: IO[bytes], path: Path, kind: str, rows: RowFormat) -> Rows:
    """Yield (location for messages, values of a row by column). Raises DAT001 for a malformed file.

    `.json` holds one array of objects, an object per line, or the questions of SQuAD.
    """
    if kind == PARQUET:
        return _whole_parquet_rows(handle, path, rows)
    pieces = line_pieces(handle, path)
    if kind in DELIMITERS:
        return csv_rows(pieces, path, DELIMITERS[kind], rows)
    if kind == CONLL:
        return conll_rows(pieces, path, rows.column_names)
    if kind != ".json":
        return _json_lines(pieces, path)
    first = next((piece for piece in pieces if piece.text.strip()), None)
    if first is None:
        return iter(())
    if first.text.lstrip().startswith("["):
        return _json_array(chain([first], pieces), path)
    read = [first, *islice(pieces, BEGINNING_LINES)]
    is_only_line = all(each.number == first.number or not each.text.strip() for each in read)
    if is_only_line and _PANDAS_COLUMNS.match(first.text):
        raise unreadable_error(path, "is column-oriented JSON, not rows", _RECORDS)
    beginning = "".join(piece.text for piece in read)
    if _NUMBERED_ROWS.match(beginning):
        raise unreadable_error(path, "is one object of numbered rows, not a list of rows", _FROM_OBJECT)
    if is_squad(beginning):
        return squad_rows((piece.text for piece in chain(read, pieces)), path)
    return _json_lines(chain(read, pieces), path)


def _json_lines(pieces: Iterator[LinePiece], path: Path) -> Rows:
    for number, line in whole_lines(pieces, path):
        if line.strip():
            yield (location := f"{path}:{number}"), _parse_object(line, location)


def _parse_object(line: str, location: str) -> dict[str, Any]:
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        if (values := _INDENTED.get(line.strip())) is not None:
            raise unreadable_error(
                location,
                "starts a JSON value that spans several lines",
                f"{_ONE_PER_LINE}: jq -c {values} in.json > out.jsonl",
            ) from error
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise unreadable_error(location, f"is not JSON: {reason}", _ONE_PER_LINE) from error
    if (found := _row_from_value(row)) is None:
        raise unreadable_error(location, f"is {describe_kind(row)}, not a JSON object", _ONE_PER_LINE)
    return found


def _row_from_value(value: object) -> dict[str, Any] | None:
    """Return an object unchanged, a list of messages as the row of a conversation, anything else as None."""
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return {MESSAGES: value}
    return value if isinstance(value, dict) else None


def _json_array(pieces: Iterator[LinePiece], path: Path) -> Rows:
    number = 0
    try:
        for row in array_objects((piece.text for piece in pieces), MAX_LINE_CHARACTERS):
            number += 1
            yield f"{path}, object {number}", row
    except (ValueError, RecursionError) as error:
        location = f"{path}, object {number + 1}"
        raise unreadable_error(location, f"is not JSON: {error}", "write an array of JSON objects") from error


def csv_rows(pieces: Iterable[LinePiece], path: Path, delimiter: str, rows: RowFormat) -> Rows:
    """Yield (location for messages, values of a row by column) from the lines of a CSV or TSV file.

    If the header has only another delimiter, that one is used: spreadsheets write `;` in some languages.
    Raises DAT001 for a malformed line, DAT011 for repeated column names.
    """
    csv.field_size_limit(MAX_LINE_CHARACTERS)
    lines: Iterator[str] = (line for _, line in whole_lines(pieces, path))
    if rows.column_names is None:
        first_line = next(lines, "")
        check_first_line(first_line, path)
        delimiter = detect_delimiter(first_line, delimiter)
        lines = chain([first_line], lines)
    has_quotes = delimiter != "\t" or rows.tsv_quotes
    hint = _QUOTE_FIELDS if delimiter != "\t" else _QUOTE_TSV if has_quotes else _PLAIN_TSV
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    first = 1  # line of the row: a quote that is not closed fails many lines later
    try:
        header = next(reader, []) if rows.column_names is None else list(rows.column_names)
        rows.refuse_repeated_columns(header, f"{path}:1")
        first = reader.line_num + 1
        for fields in reader:
            location, first = f"{path}:{first}", reader.line_num + 1
            if not fields:
                continue
            if len(fields) != len(header):
                named = "the header" if rows.column_names is None else "dataset.column_names"
                message = f"has {counted(len(fields), 'field')}, but {named} has {len(header)}"
                raise unreadable_error(
                    location, message, _COMPLETE if _is_cut_short(fields, header) else hint
                )
            yield location, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        reason = str(error).replace("\t", "\\t")
        runs_on = f" (a quoted field runs to line {reader.line_num})" if reader.line_num > first else ""
        raise unreadable_error(f"{path}:{first}", f"is not CSV: {reason}{runs_on}", hint) from error


def _is_cut_short(fields: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether fields are missing, and not because a quote has swallowed a delimiter or a line end."""
    return len(fields) < len(header) and not any(_SWALLOWED.search(field) for field in fields)


def detect_delimiter(header: str, expected: str) -> str:
    """Return another delimiter if the header has that one and lacks `expected`; else `expected`."""
    if expected not in header and (found := _SEPARATING.search(header)):
        return found[0]
    return expected


class _ParsedObjects(NamedTuple):
    """Parsed objects, the unparsed rest, the token expected next, and the error of parsing the rest."""

    objects: list[dict[str, Any]]
    rest: str
    expected: str
    error: ValueError | None


def array_objects(chunks: Iterable[str], max_characters: int) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON array that is given as chunks of text.

    Raises ValueError for anything but one array of objects, each of at most `max_characters`.
    """
    taken, retry_at = _ParsedObjects([], "", _START, None), 0
    for chunk in chunks:
        text = taken.rest + chunk
        # An object that spans many chunks is not parsed from its start for each chunk.
        if len(text) < retry_at:
            taken = taken._replace(objects=[], rest=text)
            continue
        taken = _parse_objects(text, taken.expected)
        yield from taken.objects
        retry_at = 2 * len(taken.rest)
        if len(taken.rest) > max_characters:
            raise taken.error or ValueError(f"one object is longer than {max_characters:,} characters")
    taken = _parse_objects(taken.rest, taken.expected)
    yield from taken.objects
    if taken.expected != _END or taken.rest:
        raise taken.error or ValueError(f"the text ends where {taken.expected} is expected")


def _parse_objects(text: str, expected: str) -> _ParsedObjects:
    """Parse all complete objects of `text`, whose first token must be of the kind `expected`."""
    objects: list[dict[str, Any]] = []
    offset = _skip_whitespace(text, 0)
    while offset < len(text):
        if text[offset] in _SEPARATORS[expected]:
            expected, offset = _SEPARATORS[expected][text[offset]], offset + 1
        else:
            wrong, row, end = ValueError(f"{text[offset]!r} where {expected} is expected"), None, offset
            if text[offset] in "{[" and expected in (_FIRST, _OBJECT):
                try:
                    found, end = _DECODER.raw_decode(text, offset)
                except ValueError as error:
                    return _ParsedObjects(objects, text[offset:], expected, error)
                row = _row_from_value(found)
            if row is None:
                return _ParsedObjects(objects, text[offset:], expected, wrong)
            objects.append(row)
            expected, offset = _NEXT, end
        offset = _skip_whitespace(text, offset)
    return _ParsedObjects(objects, "", expected, None)


def _skip_whitespace(text: str, offset: int) -> int:
    match = _SPACE.match(text, offset)
    return offset if match is None else match.end()


def parquet_rows(
    handle: IO[bytes], path: Path, rows: RowFormat, row_group: int | None = None
) -> Iterator[Row]:
    """Yield the rows of a parquet file, or of one row group.

    Raises DAT001 if the file is damaged, DAT011 for unsuitable columns.
    """
    with _open_parquet(handle, path) as table:
        columns = _select_columns(table, path, rows)
        names = list(dict.fromkeys(columns.values()))
        for location, values in _parquet_values(table, path, names, row_group):
            yield rows.row(values, columns, location)


def _whole_parquet_rows(handle: IO[bytes], path: Path, rows: RowFormat) -> Rows:
    with _open_parquet(handle, path) as table:
        rows.refuse_repeated_columns(table.schema_arrow.names, str(path))
        yield from _parquet_values(table, path, None)


class RowGroup(NamedTuple):
    """Number of rows of a row group, and its size in bytes before compression."""

    rows: int
    size: int


def row_groups(handle: IO[bytes], path: Path) -> list[RowGroup]:
    """Return the row groups of a parquet file. Raises DAT001 if it is damaged."""
    with _open_parquet(handle, path) as table:
        groups = (table.metadata.row_group(number) for number in range(table.metadata.num_row_groups))
        return [RowGroup(group.num_rows, group.total_byte_size) for group in groups]


def _parquet_values(table: Any, path: Path, columns: list[str] | None, row_group: int | None = None) -> Rows:
    chosen = range(table.metadata.num_row_groups) if row_group is None else [row_group]
    number = sum(table.metadata.row_group(before).num_rows for before in range(row_group or 0))
    batch_size = _rows_per_batch(table.metadata)
    for batch in table.iter_batches(batch_size=batch_size, row_groups=list(chosen), columns=columns):
        names = columns or batch.schema.names
        for cells in zip(*(batch.column(name) for name in names), strict=True):
            number += 1
            values = {
                name: _convert_cell(cell, path, number) for name, cell in zip(names, cells, strict=True)
            }
            yield f"{path}, row {number}", values


def parquet_columns(handle: IO[bytes], path: Path, rows: RowFormat) -> dict[str, str]:
    """Return the column of each field, by field name. Raises the same errors as `parquet_rows`."""
    with _open_parquet(handle, path) as table:
        return _select_columns(table, path, rows)


def _select_columns(table: Any, path: Path, rows: RowFormat) -> dict[str, str]:
    rows.refuse_repeated_columns(table.schema_arrow.names, str(path))
    kinds = ((field.name, str(field.type)) for field in table.schema_arrow)
    return rows.columns({name: _example_value(kind) for name, kind in kinds}, str(path))


def _example_value(kind: str) -> object:
    """Return a sample value of a column type, for hints: "" for text, () for nested types, 0 for others."""
    if "<" in kind and not kind.startswith("dictionary"):
        return ()
    return "" if "string" in kind else 0


def _rows_per_batch(metadata: Any) -> int:
    """Return the number of rows per read: about `MAX_BYTES` in the row group with the longest rows."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    longest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(MAX_ROWS, int(MAX_BYTES / max(1, longest))))


def _convert_cell(cell: Any, path: Path, row: int) -> object:
    try:
        value = cell.as_py()
    except UnicodeDecodeError as error:
        raise unreadable_error(
            f"{path}, row {row}", f"is not UTF-8: {error}", "save the column as UTF-8"
        ) from error
    return None if isinstance(value, float) and math.isnan(value) else value


@contextmanager
def _open_parquet(handle: IO[bytes], path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_start(handle.read(MARK_BYTES), path, PARQUET_MARK)
    handle.seek(0)
    try:
        yield pq.ParquetFile(handle)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the content
        raise unreadable_error(
            path, f"is not a readable parquet file: {error}", "save the file as parquet again"
        ) from error
