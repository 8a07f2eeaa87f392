"""Files and rows of a table of labelled rows, of which a run file is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from neobert.config.text_formats import PARQUET, ROWS_IN_LINES, is_plain, text_format
from neobert.data.sources.file_listing import is_saved_dataset, resolve_paths
from neobert.data.sources.file_selection import TRAIN, TextFile, select_files
from neobert.data.sources.rows import RowFormat
from neobert.data.sources.saved_rows import saved_rows, split_folders
from neobert.data.sources.splits import evaluation_split
from neobert.data.sources.table_rows import Rows
from neobert.data.sources.text_files import ALL_COLUMNS, read_table, row_groups
from neobert.errors import ProjectError


def split_files(text: Path, rows: RowFormat = ALL_COLUMNS) -> Sequence[TextFile]:
    """Return the files of a text with their splits; of a saved dataset, the folder of each split.

    Raises `ProjectError` DAT001 if no file is found.
    """
    if is_saved_dataset(text):
        return [TextFile(folder, name, name) for name, folder in split_folders(text).items()]
    return select_files(resolve_paths([str(text)]), rows, lambda _: False).files


def has_evaluation_split(text: Path) -> bool:
    """Return whether the files have a training and an evaluation split, so that no rows are held out.

    Raises `ProjectError` DAT001 if no file is found.
    """
    splits = {file.split for file in split_files(text)}
    return TRAIN in splits and evaluation_split(tuple(splits), TRAIN) is not None


def training_tables(text: Path) -> list[Path]:
    """Return the files of the training split, else all files; of a saved dataset, one folder.

    Raises `ProjectError` DAT001 if no file is found.
    """
    found = split_files(text)
    tables = [file.path for file in found if file.split == TRAIN] or [file.path for file in found]
    return tables[:1] if is_saved_dataset(text) else tables


def read_rows(table: Path, rows: RowFormat = ALL_COLUMNS) -> Rows:
    """Return an iterator over the rows of a table from `training_tables`.

    It yields (location for messages, values by column), and raises `ProjectError` at an unreadable row.
    """
    return saved_rows(table) if is_saved_dataset(table) else read_table(table, rows)


def read_share(text: Path, first_rows: int) -> float | None:
    """Estimate the share of a table in its first rows; None if files are compressed or rows are not lines."""
    files = training_tables(text)
    with suppress(ProjectError, OSError):
        if all(text_format(file) == PARQUET for file in files):
            return first_rows / sum(group.rows for file in files for group in row_groups(file))
        if all(is_plain(file) and text_format(file) in ROWS_IN_LINES for file in files):
            num_bytes = sum(islice(_row_sizes(files), first_rows))
            return num_bytes / sum(file.stat().st_size for file in files)
    return None


def _row_sizes(files: Iterable[Path]) -> Iterator[int]:
    """Yield the size of each row in bytes; in CSV, a row continues while its quotes are not closed."""
    for file in files:
        has_quotes, size, num_quotes = text_format(file) == ".csv", 0, 0
        with file.open("rb") as opened:
            for line in opened:
                size += len(line)
                num_quotes += line.count(b'"') if has_quotes else 0
                if num_quotes % 2 == 0:
                    yield size
                    size = 0
        if size:  # after a quote that encloses nothing, as in 5"
            yield size
