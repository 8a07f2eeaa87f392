"""Parsing of labels: classes by number or name, and scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from neobert.data.sources.rows import TRUTH_VALUES, UnknownLabelError
from neobert.errors import ProjectError
from neobert.plurals import listed

CODE = "DAT020"
LARGEST_SCORE = 3.4028234663852886e38
"""Largest number in float32, in which scores are stored."""
MISSING = frozenset({"na", "n/a", "nan", "none", "null", "<na>"})
"""Texts that programs write for a missing value, in lower case."""


@dataclass(frozen=True, slots=True)
class ClassLabelParser:
    """Parser of a class label: a class number, or a name from label_names.

    With names, only an integer is a class number (as in a ClassLabel of `datasets`), not digits in text.
    """

    setting: str
    num_labels: int
    names: tuple[str, ...]

    def __call__(self, value: object, location: str) -> int | None:
        """Return the class number, or None for an empty cell. Raises DAT020 for an unknown class."""
        text = _label_text(value, location, self.setting)
        if text is None:
            return None
        if self.names:
            if (name := next(filter(self.names.__contains__, _equivalent_labels(text)), None)) is not None:
                return self.names.index(name)
            has_numbers = any(_parse_number(name) is not None for name in self.names)  # 0 is none of 1, 2, 3
            if type(value) is int and 0 <= value < len(self.names) and not has_numbers:
                return value
            hint = "add the name to classification.label_names, or correct the row"
            message = f"label {text!r} is unknown (classes: {listed(self.names, 10)})"
            raise UnknownLabelError(CODE, message, _hint_if_missing(text) or hint, location)
        number = _parse_number(text)
        if number is None or number != int(number):
            hint = f"list the classes in classification.label_names, or set {self.setting} to another column"
            message = f"label {text!r} is not a class number"
            raise UnknownLabelError(CODE, message, _hint_if_missing(text) or hint, location)
        if not 0 <= number < self.num_labels:
            message = f"label {text} is outside 0 to {self.num_labels - 1}"
            hint = "raise classification.num_labels, or number the classes from 0"
            raise UnknownLabelError(CODE, message, hint, location)
        return int(number)


@dataclass(frozen=True, slots=True)
class ScoreParser:
    """Parser of a regression score."""

    setting: str

    def __call__(self, value: object, location: str) -> float | None:
        """Return the score, or None for an empty cell. Raises DAT020 unless it is a finite float32."""
        text = _label_text(value, location, self.setting)
        if text is None:
            return None
        number = _parse_number(text)
        if number is None:
            hint = f"set {self.setting} to a column of numbers, or classification.problem to classes"
            message = f"score {text!r} is not a finite number"
            raise ProjectError(CODE, message, _hint_if_missing(text) or hint, location)
        if abs(number) > LARGEST_SCORE:
            message = f"score {text!r} exceeds the range of float32 ({LARGEST_SCORE:.2g})"
            raise ProjectError(CODE, message, "divide the scores by their standard deviation", location)
        return number


def _hint_if_missing(text: str) -> str:
    return "empty the label, to leave out the row" if text.lower() in MISSING else ""


def _label_text(value: object, location: str, setting: str) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str | int | float | Decimal):
        return str(value).strip()
    message = f"the label has type {type(value).__name__}, expected a number or a name"
    raise ProjectError(CODE, message, f"set {setting} to a column of labels", location)


def _equivalent_labels(text: str) -> tuple[str, ...]:
    """Return a label and its spellings in other tables: a truth value, or a whole number with `.0`."""
    whole = TRUTH_VALUES.get(text, text).removesuffix(".0")
    if not whole.removeprefix("-").isdecimal():
        return (text,)
    return (text, whole, f"{whole}.0", *(word for word, number in TRUTH_VALUES.items() if number == whole))


def _parse_number(text: str) -> float | None:
    try:
        number = float(TRUTH_VALUES.get(text, text))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
