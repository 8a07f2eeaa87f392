"""Rows out of JSON lines, JSON arrays, CSV and TSV, one at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from neobert.data.sources.json_array import array_objects
from neobert.data.sources.lines import MAX_LINE_CHARACTERS, LinePiece, line_pieces, whole_lines
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.unreadable import unreadable

Rows = Iterator[tuple[str, Mapping[str, Any]]]
KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_ONE_PER_LINE = "write one JSON object per line"
_QUOTE_FIELDS = "quote fields that hold the delimiter, a quote or a line end"
_QUOTE_TSV = "set dataset.tsv_quotes to false if quotes are plain characters, or quote fields as CSV does"
_PLAIN_TSV = "remove tabs and line ends from fields, or set dataset.tsv_quotes to true if they are quoted"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def rows_of(handle: IO[bytes], path: Path, kind: str, rows: RowFormat) -> Rows:
    """Yield (place for messages, all columns of a row). Raises DAT001 for what is not of the kind.

    `.json` holds one array of objects, or an object per line.
    """
    pieces = line_pieces(handle, path)
    if kind in _DELIMITERS:
        return _csv_rows(pieces, path, _DELIMITERS[kind], rows)
    if kind != ".json":
        return _json_lines(pieces, path)
    first = next((piece for piece in pieces if piece.text.strip()), None)
    if first is None:
        return iter(())
    is_array = first.text.lstrip().startswith("[")
    return (_json_array if is_array else _json_lines)(chain([first], pieces), path)


def _json_lines(pieces: Iterator[LinePiece], path: Path) -> Rows:
    for number, line in whole_lines(pieces, path):
        if line.strip():
            place = f"{path}:{number}"
            yield place, _object(_parsed(line, place), place)


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise unreadable(place, f"is not JSON: {error}", _ONE_PER_LINE) from error


def _object(row: Any, place: str) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    raise unreadable(place, f"is a JSON {type(row).__name__}, not an object", _ONE_PER_LINE)


def _json_array(pieces: Iterator[LinePiece], path: Path) -> Rows:
    number = 0
    try:
        for row in array_objects((piece.text for piece in pieces), MAX_LINE_CHARACTERS):
            number += 1
            yield f"{path}, object {number}", row
    except (ValueError, RecursionError) as error:
        place = f"{path}, object {number + 1}"
        raise unreadable(place, f"is not JSON: {error}", "write an array of JSON objects") from error


def _csv_rows(pieces: Iterator[LinePiece], path: Path, delimiter: str, rows: RowFormat) -> Rows:
    csv.field_size_limit(MAX_LINE_CHARACTERS)
    has_quotes = delimiter == "," or rows.tsv_quotes
    hint = _QUOTE_FIELDS if delimiter == "," else _QUOTE_TSV if has_quotes else _PLAIN_TSV
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    lines = (line for _, line in whole_lines(pieces, path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    try:
        header = list(rows.column_names) if rows.column_names is not None else next(reader, [])
        for fields in filter(None, reader):
            place = f"{path}:{reader.line_num}"
            if len(fields) != len(header):
                named = "the header" if rows.column_names is None else "dataset.column_names"
                message = f"has {len(fields)} fields, and {named} has {len(header)}"
                raise unreadable(place, message, hint)
            yield place, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise unreadable(f"{path}:{reader.line_num}", f"is not CSV: {error}", hint) from error
