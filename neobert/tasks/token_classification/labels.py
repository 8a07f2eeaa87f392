"""Parsing of words and their labels: lists of strings, and of names or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neobert.data.sources.rows import TEXT, Row, UnknownLabelError
from neobert.errors import ProjectError
from neobert.plurals import counted, listed

CODE = "DAT020"
TAGS = "tags"
SEPARATOR = "\n"
"""Separator of the words of a row: its text is one string, so that copies are found as for any other text."""


@dataclass(frozen=True)
class WordListParser:
    """Parser of a cell that contains a list of words."""

    setting: str

    def __call__(self, value: object, location: str) -> str:
        """Return the words, joined by `SEPARATOR`; null is an empty list. Raises DAT020 for anything else."""
        words = [] if value is None else _as_list(value, "words", self.setting, location)
        for word in words:
            if not isinstance(word, str):
                hint = f"set {self.setting} to a column of lists of strings"
                message = f"a word has type {type(word).__name__}, expected a string"
                raise ProjectError(CODE, message, hint, location)
            if SEPARATOR in word:
                message = f"word {word!r} contains a line end"
                raise ProjectError(CODE, message, "remove the line end from the word", location)
        return SEPARATOR.join(words)


@dataclass(frozen=True)
class TagListParser:
    """Parser of a cell that contains a list of labels: names or class numbers."""

    setting: str
    names: tuple[str, ...]

    @cached_property
    def _class_numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def __call__(self, value: object, location: str) -> tuple[int, ...]:
        """Return the class number of each label; null is an empty list. Raises DAT020 for other values."""
        labels = [] if value is None else _as_list(value, "labels", self.setting, location)
        return tuple(self._class_number(label, location) for label in labels)

    def _class_number(self, label: object, location: str) -> int:
        if isinstance(label, int) and not isinstance(label, bool):
            if 0 <= label < len(self.names):
                return label
            message = f"label {label} is outside 0 to {len(self.names) - 1}"
            hint = "name every label in token_classification.label_names, in the order of their numbers"
            raise UnknownLabelError(CODE, message, hint, location)
        if isinstance(label, str) and label in self._class_numbers:
            return self._class_numbers[label]
        raise UnknownLabelError(
            CODE,
            f"label {label!r} is unknown (classes: {listed(self.names, 10)})",
            "add the label to token_classification.label_names, or correct the row",
            location,
        )


def require_label_per_word(row: Row, location: str) -> None:
    """Raise DAT020 unless every word of a row has a label."""
    num_words, num_labels = count_words(row[TEXT], row[TAGS]), len(row[TAGS])
    if num_words != num_labels:
        raise ProjectError(
            CODE,
            f"the row has {counted(num_words, 'word')}, but {counted(num_labels, 'label')}",
            "write one label for each word",
            location,
        )


def count_words(text: str, tags: tuple[int, ...]) -> int:
    """Count the words of a row; 0 for a row without labels and without text."""
    return text.count(SEPARATOR) + 1 if text or tags else 0


def _as_list(value: object, content: str, setting: str, location: str) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise ProjectError(
        CODE,
        f"the {content} of a row have type {type(value).__name__}, expected a list",
        f"set {setting} to a column of lists, or name a file with one word per line NAME.conll",
        location,
    )
