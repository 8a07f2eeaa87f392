"""Location of the first rows that lack a text or a label, for messages about rows that are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain, islice

from neobert.config.corpora import corpus_paths, list_corpora
from neobert.config.schema import DatasetConfig
from neobert.data.sources.file_listing import resolve_paths
from neobert.data.sources.file_selection import select_files
from neobert.data.sources.preview import group_by_use
from neobert.data.sources.rows import Row, RowFormat
from neobert.data.sources.text_files import LABELLED_ROWS, read_table
from neobert.errors import ProjectError

NO_TEXT, NO_LABEL = "text", "label"


def first_incomplete_rows(dataset: DatasetConfig, rows: RowFormat, wanted: Collection[str]) -> dict[str, str]:
    """Return the location of the first row that lacks a text, and of the first that lacks a label.

    `wanted` selects `NO_TEXT`, `NO_LABEL` or both. Only the first `LABELLED_ROWS` rows of local training
    files are searched, including rows held out for evaluation.
    """
    found: dict[str, str] = {}
    if not wanted:
        return found
    with suppress(ProjectError, OSError, KeyError):  # preparation has read the files, and reports errors
        located = chain.from_iterable(
            _located_rows(each, rows) for each in list_corpora(dataset) if each.path
        )
        for location, row in islice(located, LABELLED_ROWS):
            if (lacking := _missing_part(row, rows)) in wanted:
                found.setdefault(lacking, location)
            if len(found) == len(wanted):
                break
    return found


def _located_rows(dataset: DatasetConfig, rows: RowFormat) -> Iterator[tuple[str, Row]]:
    training, _, _ = group_by_use(select_files(resolve_paths(corpus_paths(dataset)), rows).files, dataset)
    for file in training:
        columns: dict[str, str] = {}
        for location, values in read_table(file.path, rows):
            columns = columns or rows.columns(values, location)
            yield location, rows.row(values, columns, location)


def _missing_part(row: Row, rows: RowFormat) -> str:
    """Return what a row lacks; empty for a complete row. A pair with one text is complete."""
    if not any(str(row[field.name]).strip() for field in rows.fields if field.is_text):
        return NO_TEXT
    has_label = all(row[field.name] is not None for field in rows.fields if not field.is_text)
    return "" if has_label else NO_LABEL
