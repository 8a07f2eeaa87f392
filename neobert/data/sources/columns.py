"""Columns of a table: the one that holds a field."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.errors import ProjectError

CANDIDATES = ("text", "sentence", "content")
TEXT_SETTING = "dataset.text_column"


def choose_column(
    columns: Iterable[str],
    wanted: str | None,
    place: str,
    setting: str = TEXT_SETTING,
    candidates: tuple[str, ...] = CANDIDATES,
) -> str:
    """Return the column to read: `wanted`, else the only one of `candidates`.

    Raises DAT011 where it is absent or where more than one would do; `setting` is the key to change.
    """
    names = list(columns)
    if wanted is not None:
        if wanted in names:
            return wanted
        raise _column_error(f"there is no column {wanted!r}", names, place, setting)
    found = [name for name in candidates if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise _column_error(
            f"more than one column may be the text: {', '.join(found)}", names, place, setting
        )
    raise _column_error(f"none of the columns is named {', '.join(candidates)}", names, place, setting)


def text_of(value: object, column: str, place: str, setting: str = TEXT_SETTING) -> str:
    """Return the text of one row; null counts as an empty document. Raises DAT011 for anything but text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise ProjectError(
        "DAT011",
        f"column {column!r} holds {type(value).__name__}, not text",
        f"name a column of strings in {setting}",
        place,
    )


def _column_error(message: str, names: list[str], place: str, setting: str) -> ProjectError:
    listed = ", ".join(repr(name) for name in names) or "none"
    return ProjectError("DAT011", message, f"set {setting} to one of the columns: {listed}", place)
