"""Parsing of choices, and of the label that names the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neobert.data.sources.rows import Row, describe_kind
from neobert.errors import ProjectError
from neobert.plurals import counted, listed
from neobert.printable import printable

CODE = "DAT020"
LABEL, CHOICES = "label", "choices"
FIRST = "A"
"""Letter of the first choice, as in RACE."""
SEPARATOR = "\n"
"""Separator of the choices of a cell: a row's text is one string. Line ends in choices become spaces."""


class Choices(str):
    """Choices of a cell, joined by `SEPARATOR`, with the names that a label may have, such as A to D."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceListParser:
    """Parser of a cell with a list of choices, or with an object of texts and their labels as in ARC."""

    setting: str

    def __call__(self, value: object, location: str) -> Choices:
        """Return the choices. Raises DAT020 unless the cell holds a list of strings."""
        texts, names = value, None
        if isinstance(value, Mapping):
            texts, names = value.get("text"), value.get("label")
        if not isinstance(texts, list | tuple):
            hint = f"set {self.setting} to a column of lists, or multiple_choice.choice_columns"
            raise ProjectError(
                CODE, f"the choices are {describe_kind(texts)}, expected a list", hint, location
            )
        for text in texts:
            if not isinstance(text, str):
                message = f"a choice is {describe_kind(text)}, not text"
                raise ProjectError(
                    CODE, message, f"set {self.setting} to a column of lists of texts", location
                )
        found = Choices(join_choices(texts))
        found.names = tuple(map(str, names)) if isinstance(names, list | tuple) else ()
        return found


def join_choices(texts: Sequence[str]) -> str:
    """Join texts into one string, without empty ones at the end."""
    return SEPARATOR.join(text.replace(SEPARATOR, " ") for text in texts).rstrip(SEPARATOR)


def parse_label(value: object, location: str) -> str:
    """Return a label, a string or a whole number, as text. Raises DAT020 for any other cell."""
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    message = f"the label is {describe_kind(value)}, expected a name or a number"
    if value in (None, ""):
        message = "the row has no label"
    hint = (
        "set multiple_choice.label_column to the column with the index of the right choice, or remove the row"
    )
    raise ProjectError(CODE, message, hint, location)


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Check of a row: its number of choices is allowed, and its label names one of them.

    Attributes:
        columns: fields of the choices.
    """

    columns: tuple[str, ...]
    most: int

    def __call__(self, row: Row, location: str) -> None:
        """Raise DAT020 for too few or too many choices, an empty choice, or a label that names none."""
        if row[LABEL] is None:  # a row without text, which is left out
            return
        texts = row_choices(row, self.columns)
        if not 2 <= len(texts) <= self.most:
            message = f"the row has {counted(len(texts), 'choice')} (must have 2 to {self.most})"
            more = "raise multiple_choice.max_choices" if len(texts) > 2 else "add choices"
            raise ProjectError(CODE, message, f"{more}, or remove the row", location)
        if any(not text.strip() for text in texts):
            message = f"choice {[not text.strip() for text in texts].index(True)} is empty"
            raise ProjectError(CODE, message, "move empty choices after the others", location)
        if choice_index(row, len(texts)) is None:
            names = getattr(row.get(CHOICES), "names", ())
            numbers = f"a number from 0 to {len(texts) - 1}, or a letter from {FIRST}"
            known = f"one of {listed(names)}" if names else numbers
            message = f"label {printable(row[LABEL])!r} is not {known}"
            hint = "correct the label, or set multiple_choice.label_column to another column"
            if row[LABEL] == str(len(texts)):
                hint = f"labels count from 0: subtract 1 from each if yours start at 1; or {hint}"
            raise ProjectError(CODE, message, hint, location)


def row_choices(row: Row, columns: Sequence[str]) -> list[str]:
    """Return the choices of a row, from one field or from several; empty ones at the end are left out."""
    cells = [row[column] for column in columns]
    text = cells[0] if columns == (CHOICES,) else join_choices(cells)
    return text.split(SEPARATOR) if text else []


def choice_index(row: Row, num_choices: int) -> int | None:
    """Return the index of the right choice, or None if the label names no choice.

    If the choices have names, the label is one of them; else it is a number from 0 or a letter from A.
    """
    label, names = row[LABEL], getattr(row.get(CHOICES), "names", ())
    if names:
        return names.index(label) if label in names[:num_choices] else None
    number = ord(label) - ord(FIRST) if len(label) == 1 and label.isupper() else -1
    number = int(label) if label.isdecimal() else number
    return number if 0 <= number < num_choices else None
