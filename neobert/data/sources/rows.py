"""Rows: the values that a task reads from each example, and their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import hint_for_plain_text
from neobert.errors import ProjectError


class UnknownLabelError(ProjectError):
    """A label that is not among the classes. The reader of a file adds the labels that the file has."""


CANDIDATES = ("text", "sentence", "content")
TEXT_SETTING, TEXT_OPTION = "dataset.text_column", "--column"
"""Key of a run file, and option of commands without a run file, that name the text column."""
IN_RUN_FILE = " or set dataset.column_names"
"""Part of a hint that a command without a run file leaves out."""
NUMBER = re.compile(r"[-+]?[0-9]+(?:[.,][0-9]+)?")
TRUTH_VALUES = {"False": "0", "True": "1"}
"""Truth values as text, of JSON and parquet and as pandas writes them into CSV, and their numbers."""
NESTED = (
    "write the text to a column of its own, since nested text is not read "
    "(of JSON, for example: jq -c '{text: .body.content}' in.jsonl > out.jsonl)"
)


def choose_column(
    columns: Mapping[str, object],
    wanted: str | None,
    location: str,
    setting: str = TEXT_SETTING,
    candidates: tuple[str, ...] = CANDIDATES,
) -> str:
    """Return the column to read: `wanted`, else the only one of `candidates` that exists.

    Raises DAT011 if the column is absent or ambiguous; `setting` is the config key that the hint names.
    """
    if wanted is not None:
        if wanted in columns:
            return wanted
        raise column_error(f"there is no column {wanted!r}", columns, location, setting)
    found = [name for name in candidates if name in columns]
    if len(found) == 1:
        return found[0]
    if found:
        raise column_error(f"several columns match: {', '.join(found)}", columns, location, setting)
    raise column_error(f"none of the columns is named {', '.join(candidates)}", columns, location, setting)


def looks_like_value(name: str) -> bool:
    """Return whether a column name is a number, a long text or a sentence, as without a header line."""
    is_sentence = len(name.split()) >= 4 and name.endswith((".", "!"))
    return len(name) > 60 or is_sentence or NUMBER.fullmatch(name.strip()) is not None


KINDS = {
    str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list",
    dict: "an object with keys", type(None): "null",
}  # fmt: skip


def describe_kind(value: object) -> str:
    """Return the kind of a cell's value as text."""
    return KINDS.get(type(value), type(value).__name__)


def parse_text(value: object, column: str, location: str, setting: str = TEXT_SETTING) -> str:
    """Return the text of one row; null counts as an empty document. Raises DAT011 for anything but text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    hint = NESTED if isinstance(value, list | dict) else f"set {setting} to a column of strings"
    raise ProjectError("DAT011", f"column {column!r} holds {describe_kind(value)}, not text", hint, location)


def column_error(message: str, columns: Mapping[str, object], location: str, setting: str) -> ProjectError:
    """Return DAT011 with a hint that lists the columns, or only columns of strings for the text.

    If the first line looks like a row, the hint also suggests a header line.
    """
    names, ways = list(columns), []
    if setting in (TEXT_SETTING, TEXT_OPTION):
        ways = [NESTED] * any(isinstance(value, Mapping | list | tuple) for value in columns.values())
        names = [name for name, value in columns.items() if value is None or isinstance(value, str)]
    if any(map(looks_like_value, columns)):
        in_run_file = "" if setting.startswith("--") else IN_RUN_FILE
        ways.insert(0, f"add a header line{in_run_file}, as the first line seems to be a row")
    if not columns:
        ways = ["correct or remove the row"]
    elif names or not ways:
        ways.append(f"set {setting} to one of the columns: {', '.join(map(repr, names or columns))}")
    return ProjectError("DAT011", message, trl_hint(columns) + "; or ".join(ways), location)


def trl_hint(columns: Collection[str]) -> str:
    """Return the start of a hint for a table of preferences; empty for other columns."""
    return "TRL trains on preferences; here, " if {"chosen", "rejected"} <= {*columns} else ""


_ASCII = "".join(map(chr, range(128)))
_WHITESPACE = "".join(filter(str.isspace, _ASCII)).encode("ascii")
_LOWER_CASE = _ASCII.lower().encode("ascii") + bytes(128)
Row = Mapping[str, Any]
TEXT = "text"
BETWEEN_TEXTS = "\x1f"
"""Separates the texts of a pair in the key of a row."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a task's rows.

    Attributes:
        name: key of the value in a row.
        setting: config key that names the column.
        column: the column to read; None: the only one of `candidates`.
        read: function of a cell and its location that returns the value; None: a string, or "" for null.
        is_text: whether the value is a text, not a label; examples with equal texts are copies.
    """

    name: str
    setting: str
    column: str | None
    candidates: tuple[str, ...] = ()
    read: Callable[[object, str], Any] | None = None
    is_text: bool = True


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Fields of a task's rows, and settings for tables without a header or with literal quotes.

    Attributes:
        column_names: columns of CoNLL files, and of CSV and TSV files without a header line; None: their
            first line names them.
        tsv_quotes: whether fields of a TSV file may be quoted; False: quotes are literal characters.
        document_per_line: whether each line of a text file is a document; False: blank lines end documents.
        check: function of a row and its location that raises `ProjectError` for inconsistent fields.
    """

    fields: tuple[Field, ...]
    column_names: tuple[str, ...] | None = None
    tsv_quotes: bool = True
    check: Callable[[Row, str], None] | None = None
    document_per_line: bool = False

    @property
    def is_plain_text(self) -> bool:
        """Return whether the text is the only field, so that files without columns can be read."""
        return tuple(field.name for field in self.fields) == (TEXT,)

    def columns(self, available: Mapping[str, object], location: str) -> dict[str, str]:
        """Return the column of each field, given the columns, each with a sample value.

        Raises DAT011 if it is absent, ambiguous, or used twice.
        """
        chosen = {
            field.name: choose_column(available, field.column, location, field.setting, field.candidates)
            for field in self.fields
        }
        settings: dict[str, str] = {}
        for field in self.fields:
            column = chosen[field.name]
            if column in settings:
                message = f"{settings[column]} and {field.setting} both name column {column!r}"
                raise column_error(message, available, location, field.setting)
            settings[column] = field.setting
        return chosen

    def refuse_repeated_columns(self, header: Sequence[str], location: str) -> None:
        """Raise DAT011 if two columns share a name that a field may read; without fields, any name."""
        read = {name for field in self.fields for name in (field.column or "", *field.candidates)}
        repeated = {name for name in header if header.count(name) > 1 and (name in read or not read)} - {""}
        if repeated:
            name = sorted(repeated)[0]
            raise ProjectError(
                "DAT011", f"several columns are named {name!r}", "rename all but one", location
            )

    def with_columns(self, columns: Mapping[str, str]) -> RowFormat:
        """Return a copy that reads each field from its column in `columns`."""
        return replace(
            self, fields=tuple(replace(field, column=columns[field.name]) for field in self.fields)
        )

    def with_text_column(self, column: str | None) -> RowFormat:
        """Return a copy that reads the text from `column`."""
        fields = (replace(field, column=column) if field.name == TEXT else field for field in self.fields)
        return replace(self, fields=tuple(fields))

    def row(self, values: Mapping[str, Any], columns: Mapping[str, str], location: str) -> Row:
        """Select the fields from a table's row. Raises DAT011 for a text that is not a string.

        A row without any text has None for a cell that is null or empty: spreadsheets export empty rows.
        """
        texts = {
            field.name: parse_text(values[columns[field.name]], columns[field.name], location, field.setting)
            for field in self.fields
            if field.read is None
        }
        row: dict[str, Any] = dict(texts)
        for field in self.fields:
            if field.read is not None:
                value = values[columns[field.name]]
                is_left_out = value in (None, "") and texts and not any(map(str.strip, texts.values()))
                row[field.name] = None if is_left_out else field.read(value, location)
        if self.check is not None:
            self.check(row, location)
        return row

    def key(self, row: Row) -> str:
        """Return the texts of a row, without labels: rows with equal keys are copies."""
        texts = [row[field.name] for field in self.fields if field.is_text]
        return texts[0] if len(texts) == 1 else BETWEEN_TEXTS.join(texts)

    def identity(self) -> dict[str, Any]:
        """Return the settings that affect the rows, JSON-serializable; empty for text of one column."""
        described: dict[str, Any] = {}
        if not self.is_plain_text:
            described["fields"] = [[field.name, field.column] for field in self.fields]
        if self.column_names is not None:
            described["column_names"] = list(self.column_names)
        if not self.tsv_quotes:
            described["tsv_quotes"] = False
        if self.document_per_line:
            described["document_per_line"] = True
        return described


def text_rows(config: DatasetConfig) -> RowFormat:
    """Return the row format with the text as the only field."""
    field = Field(TEXT, TEXT_SETTING, config.text_column, CANDIDATES)
    lines = config.document_per_line
    return RowFormat((field,), config.column_names, config.tsv_quotes, document_per_line=lines)


def count_characters(row: Row) -> int:
    """Count the characters of a row's strings, which limit the memory of a batch."""
    return sum(len(value) for value in row.values() if isinstance(value, str))


def check_plain_text(path: object, rows: RowFormat) -> None:
    """Raise DAT011 for a file without columns if the task reads several."""
    if not rows.is_plain_text:
        tables = "train without the pipeline, with dataset.path as JSON lines, CSV, TSV, CoNLL or parquet"
        hint = hint_for_plain_text(path) if isinstance(path, Path) else tables
        raise ProjectError("DAT011", "is plain text, but the task reads columns", hint, str(path))


def without_whitespace_and_case(text: str) -> str:
    """Return a text without whitespace and case: texts that are equal in this form are copies.

    Whitespace is removed rather than collapsed, because mirrors of one dataset are tokenized differently
    ("a word ?" and "a word?").
    """
    if text.isascii():  # ten times as fast, and the same
        return text.encode("ascii").translate(_LOWER_CASE, _WHITESPACE).decode("ascii")
    return "".join(text.split()).casefold()


def text_digest(text: str) -> bytes:
    """Return the 8-byte BLAKE2b digest of a text."""
    from hashlib import blake2b  # OpenSSL takes 6 ms to load, and lint reads no rows

    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
