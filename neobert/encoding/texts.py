"""Texts to encode: lines of a text file, a column of a table, or rows of a local or Hub dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import READABLE, kind_of
from neobert.config.text_formats import TEXT as TEXT_KIND
from neobert.data.sources.corpus import TRAIN_KEY, open_corpus
from neobert.data.sources.lines import line_pieces, whole_lines
from neobert.data.sources.parts import known_count
from neobert.data.sources.rows import CANDIDATES, TEXT, Field, RowFormat
from neobert.data.sources.text_files import opened, read_rows
from neobert.data.sources.unreadable import unopened
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.hub_names import is_hub_name

COLUMN_OPTION, SPLIT_OPTION = "--column", "--split"
BLOCK_BYTES = 1 << 20


class Texts(Protocol):
    """Texts in a fixed order."""

    def __iter__(self) -> Iterator[str]:
        """Read them from the beginning."""

    def known_count(self) -> int | None:
        """Return the number of texts if counting is much faster than reading; else None."""

    def identity(self) -> Any:
        """Describe the content as JSON: equal means the same texts."""


def open_texts(path: Path, column: str | None, split: str) -> Texts:
    """Open a file, or one split of a folder, of a saved dataset, or of a Hub dataset.

    Raises `ProjectError`.
    """
    if path.is_dir():
        return _in_folder(DatasetConfig(path=str(path), text_column=column, train_split=split))
    if is_hub_name(str(path)):
        return _on_hub(DatasetConfig(name=str(path), text_column=column, train_split=split))
    if not path.is_file():
        message, hint = "does not exist", "pass a file or a folder"
        if path.exists():
            message, hint = "is not a regular file", "write its texts to a file: they are read more than once"
        raise ProjectError("encode-texts", message, hint, str(path), EXIT_USAGE)
    kind = kind_of(path)
    if kind is None:
        message = f"is not one of {READABLE}"
        raise ProjectError(
            "encode-texts", message, "convert the file to .txt or .jsonl", str(path), EXIT_USAGE
        )
    return _Lines(path) if kind == TEXT_KIND else _Table(path, column)


def _in_folder(config: DatasetConfig) -> Texts:
    """Open a folder. Errors name what to pass to the command, not the keys of a run file."""
    try:
        return _DataSet(config)
    except ProjectError as error:
        hint = error.hint.replace("set dataset.path to", "pass").replace("dataset.path", "the path")
        hint = hint.replace(TRAIN_KEY, SPLIT_OPTION)
        place = SPLIT_OPTION if error.place == TRAIN_KEY else error.place
        raise replace(error, hint=hint, place=place, exit_code=EXIT_USAGE) from error


def _on_hub(config: DatasetConfig) -> Texts:
    """Open a dataset by its name. Errors name the arguments of commands, not the keys of a run file."""
    try:
        return _DataSet(config)
    except ProjectError as error:
        hint = (
            f"no such local path: pass an existing one, or check the name, {COLUMN_OPTION} and {SPLIT_OPTION}"
        )
        raise replace(error, hint=hint, place=str(config.name), exit_code=EXIT_USAGE) from error


class _Lines:
    """Each line is a text, also an empty one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        with opened(self._path) as handle:
            for _, line in whole_lines(line_pieces(handle, self._path), self._path):
                yield line.rstrip("\r\n")

    def known_count(self) -> int:
        """Count the lines that end with LF, and what is after the last of them."""
        with opened(self._path) as handle:
            blocks = iter(lambda: handle.read(BLOCK_BYTES), b"")
            num_ends, last = 0, b"\n"
            for block in blocks:
                num_ends, last = num_ends + block.count(b"\n"), block[-1:]
        return num_ends + (last != b"\n")

    def identity(self) -> Any:
        return whole_digest(self._path)


class _Table:
    """One column. A quote in a TSV file is a character."""

    def __init__(self, path: Path, column: str | None) -> None:
        self._path, self._column = path, column

    def __iter__(self) -> Iterator[str]:
        rows = RowFormat((_text_field(self._column),), tsv_quotes=False)
        return (row[TEXT] for row in read_rows(self._path, rows))

    def known_count(self) -> None:
        """Give no count."""

    def identity(self) -> Any:
        return [whole_digest(self._path), self._column]


def _text_field(column: str | None) -> Field:
    """Return the column of texts, which errors call by the option of the command."""
    return Field(TEXT, COLUMN_OPTION, column, CANDIDATES)


class _DataSet:
    """The rows of one split, as training reads them."""

    def __init__(self, config: DatasetConfig) -> None:
        rows = RowFormat((_text_field(config.text_column),), config.column_names, config.tsv_quotes)
        self._source = open_corpus(config, rows, whole_digest).train

    def __iter__(self) -> Iterator[str]:
        return (row[TEXT] for row in self._source.open())

    def known_count(self) -> int | None:
        """Count where the source has an index, or was counted before."""
        return known_count(self._source)

    def identity(self) -> Any:
        return [self._source.identity(), self._source.column]


def whole_digest(path: Path) -> list[Any]:
    """Return size and digest of a file. Raises DAT001 if it cannot be read."""
    try:
        with path.open("rb") as file:
            return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]
    except OSError as error:
        raise unopened(path, error) from error
