"""Reader of files with labelled texts.

Quotes in TSV files are ordinary characters, a byte order mark is dropped, and a first line without a column
name of the task is data.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.config.text_formats import PARQUET, kind_of
from neobert.data.sources.lines import line_pieces, whole_lines
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.table_rows import rows_of, whole_parquet_rows
from neobert.data.sources.text_files import opened
from neobert.errors import ProjectError
from neobert.evaluation.glue.task import GlueTask

CODE = "glue-files"
Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""Place for messages, and columns of a row; no columns for a line with a wrong number of fields."""


def rows_of_file(path: Path, task: GlueTask) -> Rows:
    """Yield the rows of a file in any supported format. Raises `ProjectError` for a malformed file."""
    kind = kind_of(path)
    with opened(path, seekable=kind == PARQUET) as handle:
        if kind in (".tsv", ".txt"):
            yield from _tsv_rows(whole_lines(line_pieces(handle, path), path), path, task)
        elif kind == PARQUET:
            yield from whole_parquet_rows(handle, path)
        elif kind == ".json":
            yield from _json_rows(handle.read(), path)
        else:
            yield from rows_of(handle, path, str(kind), RowFormat(()))


def _json_rows(content: bytes, path: Path) -> Rows:
    """Yield the rows of a JSON file: the values of `{"0": {...}, "1": {...}}`, or what `rows_of` reads."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and whole and all(isinstance(row, dict) for row in whole.values()):
        for number, row in whole.items():
            yield f"{path}, object {number}", row
    else:
        yield from rows_of(io.BytesIO(content), path, ".json", RowFormat(()))


def _tsv_rows(lines: Iterator[tuple[int, str]], path: Path, task: GlueTask) -> Rows:
    header: Sequence[str] | None = None
    for number, line in lines:
        fields = line.rstrip("\r\n").split("\t")
        if header is None:
            is_header = not {*fields}.isdisjoint(task.label) and not {*fields}.isdisjoint(task.text)
            header = fields if is_header else task.headless
            RowFormat(()).refuse_repeated(header, f"{path}:1")
            if is_header:
                continue
            if not header:
                names = ", ".join((*task.text, *task.label))
                message = f"the first line names no column of task {task.name} (expected: {names})"
                raise ProjectError(CODE, message, "add the header line", f"{path}:1")
        is_whole = len(fields) == len(header)
        yield f"{path}:{number}", dict(zip(header, fields, strict=True)) if is_whole else {}
