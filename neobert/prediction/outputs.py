"""The output file: the rows of the input with the columns of the predictions."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from neobert.config.text_formats import text_format
from neobert.data.sources.table_rows import DELIMITERS
from neobert.data.sources.text_files import file_delimiter
from neobert.errors import EXIT_TRAINING_FAILED, EXIT_USAGE, ProjectError
from neobert.prediction.inputs import Inputs
from neobert.printable import printable

JSONL, PARQUET = ".jsonl", ".parquet"
SUFFIXES = (*DELIMITERS, JSONL, PARQUET)
ROWS_PER_GROUP = 8_192
PREFIX = "predicted_"
ESCAPED = "backslashreplace"
"""Error handler that escapes half of a surrogate pair, which JSON may contain and UTF-8 cannot."""
Row = Mapping[str, Any]


def check_output(output: Path, first: Row, predicted: Sequence[str]) -> None:
    """Raise `ProjectError` for an unsupported file ending, or for an added column that the input has too."""
    if output.suffix not in SUFFIXES:
        message = f"--output {output.name} does not end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        hint = "choose a file name with one of these endings"
        raise ProjectError("predict-output", message, hint, str(output), EXIT_USAGE)
    if taken := [name for name in _output_columns(first, predicted).values() if name in first]:
        message = f"the input has a column {taken[0]!r}, which the output would add"
        raise ProjectError("predict-output", message, "rename the column", "TEXTS", EXIT_USAGE)


def _output_columns(first: Row, predicted: Iterable[str]) -> dict[str, str]:
    """Return the output column of each prediction, with `PREFIX` if the input has its name."""
    return {name: f"{PREFIX}{name}" if name in first else name for name in predicted}


def write_rows(path: Path, shards: Sequence[Path], *, inputs: Inputs, suffix: str) -> None:
    """Write each row of the input with its prediction, in their order. Raises `ProjectError` or `OSError`.

    A table has the delimiter of the input if both have the same suffix. In JSON, dates and other
    values that JSON lacks are text.
    """
    rows = _merge_predictions(inputs, shards)
    if suffix == PARQUET:
        _write_parquet(path, rows)
    elif suffix == JSONL:
        with path.open("x", encoding="utf-8", errors=ESCAPED) as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    else:
        has_suffix_of_input = not inputs.path.is_dir() and text_format(inputs.path) == suffix
        delimiter = file_delimiter(inputs.path) if has_suffix_of_input else DELIMITERS[suffix]
        _write_table(path, rows, delimiter)


def _merge_predictions(inputs: Inputs, shards: Sequence[Path]) -> Iterator[Row]:
    names: dict[str, str] = {}
    for row, line in zip(inputs.rows(), shard_lines(shards), strict=True):
        prediction = json.loads(line)
        names = names or _output_columns(row, prediction)
        yield {**row, **{names.get(name, name): value for name, value in prediction.items()}}


def shard_lines(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of shards, each the prediction of one row as JSON."""
    for path in files:
        with path.open(encoding="utf-8") as file:
            yield from file


def _write_table(path: Path, rows: Iterator[Row], delimiter: str) -> None:
    """Write CSV, or TSV without quoting, with lists and objects as JSON. Raises `ProjectError`."""
    first = next(rows)
    style: dict[str, Any] = {"quotechar": None, "quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    with path.open("x", encoding="utf-8", errors=ESCAPED, newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", **style)
        try:
            writer.writerow(first)
            for row in _require_same_columns(chain((first,), rows)):
                writer.writerow([_table_cell(row.get(name)) for name in first])
        except csv.Error as error:
            raise _unwritable_error("a field holds a tab or a line end, which TSV cannot contain") from error


def _require_same_columns(rows: Iterator[Row]) -> Iterator[Row]:
    first: Row = {}
    for row in rows:
        first = first or row
        if other := [name for name in row if name not in first]:
            raise _unwritable_error(f"a row has a column {printable(other[0])!r}, which the first row lacks")
        yield row


def _unwritable_error(message: str) -> ProjectError:
    return ProjectError(
        "predict-output",
        message,
        f"choose an output file that ends in {JSONL}",
        "--output",
        EXIT_TRAINING_FAILED,
    )


def _table_cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    """Write row groups with the column types of the first one. Raises `ProjectError` for other types."""
    schema, writer, rows = None, None, _require_same_columns(rows)
    try:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            table = pa.Table.from_pylist(group, schema=schema)
            if writer is None:
                schema = table.schema
                writer = pq.ParquetWriter(path, schema)
            writer.write_table(table)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise _unwritable_error(f"parquet cannot hold a column: {error}") from error
    finally:
        if writer is not None:
            writer.close()
