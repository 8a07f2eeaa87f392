"""Form and columns of a table of conversations, inferred for a run file. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from neobert.config.text_formats import TEXT, kind_of
from neobert.data.sources.file_listing import places_of
from neobert.data.sources.file_selection import TRAIN, select_files
from neobert.data.sources.text_files import ALL_COLUMNS, read_table
from neobert.errors import ProjectError
from neobert.plurals import counted
from neobert.tasks.labelled_table import MOST_ROWS, LabelledTable, note_on_rows, quoted, unclear
from neobert.tasks.sft.conversation import FORMS, Form, form_of, form_of_column, messages_of
from neobert.tasks.sft.rows import SETTING

HEADER_BYTES = 32
"""Of a message: its role and its control tokens, as bytes of text with as many tokens."""


def infer(text: Path) -> LabelledTable:
    """Infer the form of the conversations. Raises `ProjectError` for a text that holds none."""
    rows = _rows(text)
    first = next(rows, None)
    if first is None:
        raise unclear(text, "has no rows", "pass a file with a conversation per row")
    form, keys = _form(first[1], text)
    lengths, num_messages = [], 0
    for place, values in islice((row for part in ([first], rows) for row in part), MOST_ROWS):
        messages = form.read(values, place)
        sizes = (len(str(each.get("content", "")).encode("utf-8", "replace")) for each in messages)
        lengths.append(sum(sizes) + HEADER_BYTES * len(messages))
        num_messages += len(messages)
    is_whole = next(rows, None) is None
    per_row = f"{num_messages / len(lengths):.1f} messages each"
    notes = (f"conversations: {form.name}, {counted(len(lengths), 'row')}, {per_row}",)
    return LabelledTable(keys, (*notes, *note_on_rows(lengths, is_whole=is_whole)), tuple(lengths))


def _form(values: Mapping[str, Any], text: Path) -> tuple[Form, dict[str, Any]]:
    """Return the form of a row, and the key that names a column of another name."""
    if form := form_of(values):
        return form, {}
    columns = [name for name, value in values.items() if isinstance(value, list) and _holds_messages(value)]
    if len(columns) == 1:
        return form_of_column(columns[0]), {SETTING: columns[0]}
    known = "; ".join(form.name for form in FORMS)
    names = ", ".join(map(quoted, values)) or "none"
    message = f"the columns are not those of conversations: {names}"
    raise unclear(text, message, f"rename the columns; known are {known}")


def _holds_messages(value: object) -> bool:
    try:
        messages_of(value, "")
    except ProjectError:
        return False
    return True


def _rows(text: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of the training files with their places."""
    found = select_files(places_of([str(text)]), ALL_COLUMNS, lambda _: False).files
    for file in [file.path for file in found if file.split == TRAIN] or [file.path for file in found]:
        if kind_of(file) == TEXT:
            raise unclear(file, "is plain text without conversations", "pass JSON lines or parquet")
        yield from read_table(file, ALL_COLUMNS)
