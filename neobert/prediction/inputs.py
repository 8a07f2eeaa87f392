"""Rows of the input file with all their columns, and the texts that a model reads from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neobert.config import from_dict
from neobert.config.text_formats import TEXT as TEXT_KIND
from neobert.config.text_formats import text_format
from neobert.data.sources.file_listing import is_saved_dataset
from neobert.data.sources.rows import (
    CANDIDATES,
    TEXT,
    TEXT_OPTION,
    Field,
    RowFormat,
    choose_column,
    parse_text,
)
from neobert.data.sources.saved_rows import split_folders
from neobert.encoding.texts import numbered_lines, require_text_format, size_and_digest, unusable_texts_error
from neobert.errors import ProjectError
from neobert.plurals import listed
from neobert.runfiles.model_folder import read_run_config
from neobert.tasks.spec import TaskSpec
from neobert.tasks.table_files import read_rows

Item = tuple[str, ...]
"""Texts of a row, in the order of the task's fields."""
PAIR_OPTION, PAIR = "--pair-column", "pair"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of a file in their order. Each iteration reads the file again, which need not fit in memory.

    Attributes:
        fields: text fields of a row.
        has_words: whether a field is a list of words, which may also be a text, split at whitespace.
        label: label field of the model's run, or None if the file has no such column.
    """

    path: Path
    fields: tuple[Field, ...]
    has_words: bool = False
    label: Field | None = None

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yield the values of each row by column. A line of a text file is a row with the column `text`."""
        return (row for _, row in self._located_rows())

    def texts(self) -> Iterator[Item]:
        """Yield the texts of each row. Raises DAT011 for a column that is missing or holds no text."""
        columns: list[str] = []
        for location, row in self._located_rows():
            if not all(column in row for column in columns) or not columns:
                columns = [_find_column(field, row, location) for field in self.fields]
            cells = zip(self.fields, columns, strict=True)
            yield tuple(self._read_text(field, row[column], column, location) for field, column in cells)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of `fields`, in the order of an item's texts."""
        return tuple(field.name for field in self.fields)

    def labels(self) -> Iterator[tuple[str, Any]]:
        """Yield (location, label) of each row; the label is a `ProjectError` if it cannot be read."""
        for location, row in self._located_rows():
            yield location, self._read_label(row, location)

    def _read_label(self, row: Mapping[str, Any], location: str) -> Any:
        assert self.label is not None
        assert self.label.read is not None
        try:
            return self.label.read(row.get(str(self.label.column)), location)
        except ProjectError as error:
            return error

    def identity(self) -> list[Any]:
        """Return size and digest of each file, and the columns that are read, as JSON values."""
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        return [*map(size_and_digest, files), [field.column for field in self.fields]]

    def _read_text(self, field: Field, value: object, column: str, location: str) -> str:
        if field.read is None:
            return parse_text(value, column, location, field.setting)
        text: str = field.read(
            value.split() if self.has_words and isinstance(value, str) else value, location
        )
        return text

    def _located_rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if not self.path.is_dir() and text_format(self.path) == TEXT_KIND:
            return ((f"{self.path}:{number}", {TEXT: line}) for number, line in numbered_lines(self.path))
        return read_rows(self.path, RowFormat((), tsv_quotes=False))


def open_inputs(
    path: Path, folder: Path, spec: TaskSpec, column: str | None, pair_column: str | None
) -> Inputs:
    """Return the rows of a file, or of the only split of a saved dataset, for the model of a task.

    The columns are the requested ones, else the run's if the file has them, else those with usual names.
    Raises `ProjectError` for another format, a file without rows, or columns that file or task do not have.
    """
    kind, path = (None, _single_split(path)) if is_saved_dataset(path) else (require_text_format(path), path)
    first = next(iter(Inputs(path, ()).rows()), None)
    if first is None:
        raise unusable_texts_error(path, "the file has no texts", "pass a file with text")
    run = read_run_config(folder)
    row = spec.rows(from_dict(run or {"task": spec.name})).fields
    fields = _text_fields(row, first)
    fields[0] = replace(fields[0], column=column or fields[0].column)
    if pair_column is not None:
        fields[1:2] = [_pair_field(spec, fields, pair_column)]
    if kind == TEXT_KIND and (len(fields) > 1 or column not in (None, TEXT)):
        raise unusable_texts_error(
            path, "the file is plain text, which has no columns", "pass a CSV or JSONL file"
        )
    label = _label_field(row, first) if run else None
    return Inputs(path, tuple(fields), not spec.labels_texts, label)


def _single_split(path: Path) -> Path:
    splits = [*split_folders(path).values()]
    if len(splits) > 1:
        message = f"the path is a dataset of {len(splits)} splits"
        raise unusable_texts_error(path, message, f"pass one of them: {listed([*map(str, splits)], 5)}")
    return splits[0]


def _text_fields(row: Sequence[Field], first: Mapping[str, Any]) -> list[Field]:
    """Return the text fields of a row, with the columns of the run where the file has them."""
    fields = [field for field in row if field.is_text]
    if (of_run := fields[0].column) not in first:  # the rows to predict may differ from the run's
        names = (of_run, *fields[0].candidates) if of_run else fields[0].candidates
        fields[0] = replace(fields[0], column=None, candidates=names)
    options = (TEXT_OPTION, PAIR_OPTION)
    named = [replace(field, setting=option) for field, option in zip(fields, options, strict=False)]
    return [*named, *fields[len(options) :]]


def _label_field(row: Sequence[Field], first: Mapping[str, Any]) -> Field | None:
    """Return the field of the labels, with its column in the file, or None if the file has no labels."""
    for field in row:
        names = field.candidates if field.column is None else (field.column,)
        if not field.is_text and (column := next((name for name in names if name in first), None)):
            return replace(field, column=column)
    return None


def _pair_field(spec: TaskSpec, fields: Sequence[Field], column: str) -> Field:
    if len(fields) > 1:
        return replace(fields[1], column=column)
    if not spec.labels_texts:
        message, hint = "the model reads one text per row", f"remove {PAIR_OPTION}"
        raise unusable_texts_error(PAIR_OPTION, message, hint)
    return Field(PAIR, PAIR_OPTION, column)


def _find_column(field: Field, row: Mapping[str, Any], location: str) -> str:
    candidates = tuple(dict.fromkeys((*field.candidates, *CANDIDATES)))
    return choose_column(row, field.column, location, field.setting, candidates)
