"""Which column of a row is the text."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.errors import ProjectError

CANDIDATES = ("text", "sentence", "content")


def choose_column(columns: Iterable[str], wanted: str | None, place: str) -> str:
    """Return the text column: `wanted`, else the only one of text, sentence and content.

    Raises DAT011 where it is absent or where more than one would do.
    """
    names = list(columns)
    if wanted is not None:
        if wanted in names:
            return wanted
        raise _column_error(f"there is no column {wanted!r}", names, place)
    found = [name for name in CANDIDATES if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise _column_error(f"more than one column may be the text: {', '.join(found)}", names, place)
    raise _column_error(f"none of the columns is named {', '.join(CANDIDATES)}", names, place)


def text_of(value: object, column: str, place: str) -> str:
    """Return the text of one row; null counts as an empty document. Raises DAT011 for anything but text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise ProjectError(
        "DAT011",
        f"column {column!r} holds {type(value).__name__}, not text",
        "name a column of strings in dataset.text_column",
        place,
    )


def _column_error(message: str, names: list[str], place: str) -> ProjectError:
    listed = ", ".join(repr(name) for name in names) or "none"
    return ProjectError("DAT011", message, f"set dataset.text_column to one of the columns: {listed}", place)
