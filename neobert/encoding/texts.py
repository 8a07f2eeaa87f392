"""Texts to encode: lines of a text file, a column of a table, or rows of a local or Hub dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from neobert.config.schema import DatasetConfig
from neobert.config.text_formats import READABLE, text_format
from neobert.config.text_formats import TEXT as TEXT_KIND
from neobert.data.sources.corpus import open_corpus
from neobert.data.sources.lines import line_end, line_pieces, whole_lines
from neobert.data.sources.parts import known_count
from neobert.data.sources.readers import FileSource
from neobert.data.sources.rows import CANDIDATES, TEXT, TEXT_OPTION, Field, RowFormat
from neobert.data.sources.splits import TRAIN_KEY
from neobert.data.sources.text_files import open_decompressed, read_rows
from neobert.data.sources.unreadable import unopened_error
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.hub_names import is_hub_name
from neobert.printable import printable

COLUMN_OPTION, SPLIT_OPTION = TEXT_OPTION, "--split"
ONLY_SPLIT = "train"
"""Name of the only split of a file, and of a folder whose files are not named after splits."""
BLOCK_BYTES = 1 << 20


class Texts(Protocol):
    """Interface of texts in a fixed order."""

    @property
    def label(self) -> str:
        """Name of the source; for a folder, it also lists the files that are not read."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the texts from the beginning."""

    def texts_with_files(self) -> Iterator[tuple[str, str]]:
        """Iterate over (name of the file, text); the name is empty if all texts are from one file."""

    def known_count(self) -> int | None:
        """Return the number of texts, or None if counting them is not much faster than reading them."""

    def identity(self) -> Any:
        """Return a JSON-serializable description of the content; equal descriptions mean equal texts."""


def open_texts(path: Path, column: str | None, split: str) -> Texts:
    """Open a file, or one split of a folder, of a saved dataset, or of a Hub dataset.

    Raises `ProjectError` for a path that cannot be opened, a split of a single file, or a column of a file of
    plain text.
    """
    if path.is_dir():
        return _open_dataset(DatasetConfig(path=str(path), text_column=column, train_split=split))
    if is_hub_name(str(path)):
        return _open_dataset(DatasetConfig(name=str(path), text_column=column, train_split=split))
    kind = require_text_format(path)
    if split != ONLY_SPLIT:
        hint = f"remove {SPLIT_OPTION}, or pass a folder or a Hub dataset"
        raise unusable_texts_error(
            path, f"the path is a single file, which has no split {printable(split)!r}", hint
        )
    if kind != TEXT_KIND:
        return _TableColumn(path, column)
    if column is not None:
        raise _no_columns_error(path, column)
    return _TextLines(path)


def require_text_format(path: Path) -> str:
    """Return the format of a file of texts.

    Raises `ProjectError` for a path that is not a regular file, and for an unsupported format.
    """
    if not path.is_file():
        message, hint = "the file does not exist", "pass an existing file"
        if path.exists():
            message, hint = "the path is not a regular file", "pass a file: the texts are read more than once"
        if path.is_dir():
            message, hint = "the path is a folder", "pass a table, or a folder that save_to_disk wrote"
        raise unusable_texts_error(path, message, hint)
    kind = text_format(path)
    if kind is None:
        message = f"the file is not in a supported format ({READABLE})"
        raise unusable_texts_error(path, message, "convert the file to .csv, .jsonl or .txt")
    return kind


def _no_columns_error(path: Path, column: str) -> ProjectError:
    hint = f"remove {COLUMN_OPTION}, or pass a table"
    return unusable_texts_error(
        path, f"the file is plain text, which has no column {printable(column)!r}", hint
    )


def unusable_texts_error(location: Path | str, message: str, hint: str) -> ProjectError:
    """Return the error for texts that a command cannot use."""
    return ProjectError("unusable-texts", message, hint, str(location), EXIT_USAGE)


def _open_dataset(config: DatasetConfig) -> Texts:
    """Open a folder or a Hub dataset. Raises `ProjectError` with a hint that names command-line options."""
    try:
        return _DatasetTexts(config)
    except ProjectError as error:
        location = SPLIT_OPTION if error.place == TRAIN_KEY else error.place
        raise replace(
            error, hint=_hint_for_command(error.hint), place=location, exit_code=EXIT_USAGE
        ) from error


def _hint_for_command(hint: str) -> str:
    """Replace config keys in a hint with command-line options; replace a hint about dataset.name entirely."""
    if "dataset.name" in hint:
        return "pass an existing local path, or the correct name of a Hub dataset"
    hint = hint.replace("set dataset.path to", "pass").replace("dataset.path", "the path")
    return hint.replace(TRAIN_KEY, SPLIT_OPTION)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line without its line end) of a text file.

    Raises `ProjectError` DAT001 if the file cannot be read or is not UTF-8.
    """
    with open_decompressed(path) as handle:
        for number, line in whole_lines(line_pieces(handle, path), path):
            yield number, line.rstrip("\r\n")


class _SingleFile:
    """Texts of one file."""

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def texts_with_files(self) -> Iterator[tuple[str, str]]:
        return (("", text) for text in self)


class _TextLines(_SingleFile):
    """Lines of a text file; an empty line is an empty text."""

    def __init__(self, path: Path) -> None:
        self._path, self.label = path, str(path)

    def __iter__(self) -> Iterator[str]:
        return (line for _, line in numbered_lines(self._path))

    def known_count(self) -> int:
        """Count the lines, including a last line without a line end."""
        with open_decompressed(self._path) as handle:
            block = handle.read(BLOCK_BYTES)
            end = line_end(block)
            num_ends, last = 0, end
            while block:
                num_ends, last = num_ends + block.count(end), block[-1:]
                block = handle.read(BLOCK_BYTES)
        return num_ends + (last != end)

    def identity(self) -> Any:
        return size_and_digest(self._path)


class _TableColumn(_SingleFile):
    """One column of a table. Quotes in a TSV file are literal characters."""

    def __init__(self, path: Path, column: str | None) -> None:
        self._path, self._column, self.label = path, column, str(path)

    def __iter__(self) -> Iterator[str]:
        rows = RowFormat((_text_field(self._column),), tsv_quotes=False)
        return (row[TEXT] for row in read_rows(self._path, rows))

    def known_count(self) -> None:
        """Return None: counting would require reading the table."""

    def identity(self) -> Any:
        return [size_and_digest(self._path), self._column]


def _text_field(column: str | None) -> Field:
    """Return the text field; errors about its column name the option `--column`."""
    return Field(TEXT, COLUMN_OPTION, column, CANDIDATES)


class _DatasetTexts:
    """Texts of one split of a dataset, read in the same way as training text."""

    def __init__(self, config: DatasetConfig) -> None:
        rows = RowFormat((_text_field(config.text_column),), config.column_names, config.tsv_quotes)
        self._source = open_corpus(config, rows, size_and_digest).train
        if config.path and config.text_column and self._source.column is None:
            raise _no_columns_error(Path(str(config.path)), config.text_column)
        self.label = self._source.label

    def __iter__(self) -> Iterator[str]:
        return (row[TEXT] for row in self._source.open())

    def texts_with_files(self) -> Iterator[tuple[str, str]]:
        reader = self._source.open()
        names = self._source.names if isinstance(self._source, FileSource) else ()
        for row in reader:
            yield names[reader.state()["file"]] if len(names) > 1 else "", row[TEXT]

    def known_count(self) -> int | None:
        """Return the number of rows, or None if the source has no index and was not read before."""
        return known_count(self._source)

    def identity(self) -> Any:
        return [self._source.identity(), self._source.column]


def size_and_digest(path: Path) -> list[Any]:
    """Return [size in bytes, digest] of a file. Raises DAT001 if it cannot be read."""
    try:
        with path.open("rb") as file:
            return [path.stat().st_size, hashlib.file_digest(file, "blake2b").hexdigest()[:32]]
    except OSError as error:
        raise unopened_error(path, error) from error
