"""Columns and labels of a table, inferred from its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from neobert.config.text_formats import TEXT, kind_of, suffix_of
from neobert.data.sources.file_listing import places_of
from neobert.data.sources.file_selection import TRAIN, select_files
from neobert.data.sources.rows import CANDIDATES, RowFormat
from neobert.data.sources.text_files import ALL_COLUMNS, read_table
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.tasks.classification.rows import TEXT_CANDIDATES
from neobert.tasks.token_classification.rows import TAG_COLUMNS, WORD_COLUMNS

MOST_ROWS, MOST_CHARACTERS = 100_000, 1 << 26
MOST_CLASSES, MOST_NUMBERED = 500, 20
"""Most classes, and most classes that are whole numbers: more numbers are scores."""
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "score", "rating", "stars")
PAIRS = (
    ("premise", "hypothesis"), ("question", "sentence"), ("question", "answer"), ("question", "passage"),
    ("query", "passage"), ("query", "document"), ("context", "response"),
)  # fmt: skip
NUMBERED = (("1", "2"), ("a", "b"))
SPACE = re.compile(r"\S\s+\S")
OUTSIDE = "O"
Keys = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LabelledTable:
    """Columns and labels of a table.

    Attributes:
        keys: values of config keys that differ from those of a table with the columns text and label.
        notes: the same as text, one line each.
        lengths: size of the text or texts of each row that was read, in bytes of UTF-8.
    """

    keys: Keys
    notes: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(slots=True)
class Column:
    """The values of one column.

    Attributes:
        lengths: size of each value as text.
        values: number of rows by value, up to one more than `MOST_CLASSES` values.
        num_texts: number of strings with white space inside.
        elements: number of elements by value, of lists; empty for other values.
    """

    name: str
    lengths: list[int] = field(default_factory=list)
    values: Counter[str] = field(default_factory=Counter)
    num_texts: int = 0
    elements: Counter[str | int] = field(default_factory=Counter)

    def add(self, value: object) -> None:
        """Count one value."""
        if isinstance(value, list | tuple):
            self.elements.update(each for each in value if isinstance(each, str | int))
            text = " ".join(map(str, value))
        else:
            text = "" if value is None else str(int(value) if isinstance(value, bool) else value).strip()
            self.num_texts += isinstance(value, str) and SPACE.search(text) is not None
            if text and (text in self.values or len(self.values) <= MOST_CLASSES):
                self.values[text] += 1
        self.lengths.append(len(text.encode("utf-8", "replace")))

    @property
    def numbers(self) -> list[float]:
        """The different values as numbers; empty if one of them is not a number."""
        try:
            return [float(value) for value in self.values]
        except ValueError:
            return []

    @property
    def is_text(self) -> bool:
        """True if most values are texts of several words."""
        return 2 * self.num_texts > len(self.lengths)

    @property
    def is_scored(self) -> bool:
        """True if the values are numbers that do not number a few classes."""
        numbers = self.numbers
        if all(number == int(number) for number in numbers if abs(number) < 2**53):
            return self.is_label and len(numbers) > MOST_NUMBERED
        return True

    @property
    def is_label(self) -> bool:
        """True if the values repeat as those of classes do."""
        return 2 <= len(self.values) <= MOST_CLASSES and 2 * len(self.values) <= sum(self.values.values())


def classified(text: Path) -> LabelledTable:
    """Infer text, second text, label and kind of problem. Raises `ProjectError` if a column is unclear."""
    columns, is_whole, keys = _columns(text)
    label = _label_column(columns, text)
    first, second = _text_columns([each for each in columns if each is not label], text)
    notes = [f"text: column {_quoted(first.name)}"]
    if second is not None:
        notes = [f"texts: columns {_quoted(first.name)} and {_quoted(second.name)}"]
        keys["classification.pair_column"] = second.name
    if [each.name for each in columns if each.name in TEXT_CANDIDATES] != [first.name]:
        keys["dataset.text_column"] = first.name
    keys["classification.label_column"] = label.name
    keys |= _problem(label, text)
    notes.append(f"label: column {_quoted(label.name)}, {_labels_note(label, keys)}")
    texts = [first] if second is None else [first, second]
    lengths = tuple(map(sum, zip(*(each.lengths for each in texts), strict=True)))
    return LabelledTable(keys, (*notes, *_note_on_rows(lengths, is_whole=is_whole)), lengths)


def tagged(text: Path) -> LabelledTable:
    """Infer the columns of words and of their labels. Raises `ProjectError` if a column is unclear."""
    columns, is_whole, keys = _columns(text)
    lists = {each.name: each for each in columns if each.elements}
    words = _named(lists, WORD_COLUMNS, text, "lists of words")
    others = {name: each for name, each in lists.items() if each is not words}
    tags = _named(others, TAG_COLUMNS, text, "lists of labels")
    if [name for name in WORD_COLUMNS if name in lists] != [words.name]:
        keys["dataset.text_column"] = words.name
    if [name for name in TAG_COLUMNS if name in lists] != [tags.name]:
        keys["token_classification.label_column"] = tags.name
    names = _tag_names(tags, text)
    keys["token_classification.label_names"] = names
    notes = (
        f"words: column {_quoted(words.name)}",
        f"labels: column {_quoted(tags.name)}, {counted(len(names), 'class', 'classes')}: {_listed(names)}",
    )
    lengths = tuple(words.lengths)
    return LabelledTable(keys, (*notes, *_note_on_rows(lengths, is_whole=is_whole)), lengths)


def _note_on_rows(lengths: Sequence[int], *, is_whole: bool) -> Iterator[str]:
    if not is_whole:
        yield f"only the first {counted(len(lengths), 'row')} were read: later ones may have other labels"


def _columns(text: Path) -> tuple[list[Column], bool, Keys]:
    """Read the rows. Returns the columns, whether all were read, and the keys with which they were read."""
    found = select_files(places_of([str(text)]), ALL_COLUMNS, lambda _: False).files
    files = [file.path for file in found if file.split == TRAIN] or [file.path for file in found]
    for file in files:
        if kind_of(file) == TEXT:
            raise _unclear(file, "is plain text without labels", "pass CSV, TSV, JSON lines or parquet")
    if all(suffix_of(file) != ".tsv" for file in files):
        return *_read(files, ALL_COLUMNS), {}
    return _unquoted(files) or (*_read(files, ALL_COLUMNS), {})


def _unquoted(files: Sequence[Path]) -> tuple[list[Column], bool, Keys] | None:
    """Read TSV files whose quotes are characters of the text; None if their quotes enclose fields."""
    columns: list[Column] = []
    with suppress(ProjectError):
        columns, is_whole = _read(files, replace(ALL_COLUMNS, tsv_quotes=False))
        quoted, _ = _read(files, ALL_COLUMNS)
        if len(quoted[0].lengths) == len(columns[0].lengths):  # no quote has swallowed a line end
            return None
    return (columns, is_whole, {"dataset.tsv_quotes": False}) if columns else None


def _read(files: Sequence[Path], rows: RowFormat) -> tuple[list[Column], bool]:
    """Return the columns of the first rows, and whether these are all."""
    columns: dict[str, Column] = {}
    num_characters = 0
    for num_rows, (place, values) in enumerate(_rows(files, rows)):
        if num_rows >= MOST_ROWS or num_characters > MOST_CHARACTERS:
            return list(columns.values()), False
        if not columns:
            _refuse_no_header(values, place)
            columns = {name: Column(name) for name in values}
        for name, column in columns.items():
            column.add(values.get(name))
            num_characters += column.lengths[-1]
    if not columns:
        raise _unclear(files[0], "has no rows", "pass a table with a row per text")
    return list(columns.values()), True


def _rows(files: Sequence[Path], rows: RowFormat) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in files:
        yield from read_table(file, rows)


def _refuse_no_header(values: Mapping[str, Any], place: str) -> None:
    """Raise `ProjectError` if the names of columns look like values, as the first row without a header."""
    if any(not name.strip() or len(name) > 60 or name.strip().isdigit() for name in values):
        file = Path(place.rpartition(":")[0] or place)
        names = listed([*map(_quoted, values)], 5)
        message = f"the names of the columns look like values: {names}"
        hint = "write a first line with the names of the columns, such as text and label"
        raise _unclear(file, message, hint)


def _label_column(columns: Sequence[Column], text: Path) -> Column:
    by_name = {each.name.lower(): each for each in reversed(columns)}
    named = next((by_name[name] for name in LABELS if name in by_name), None)
    if named is not None:
        return named
    likely = [each for each in columns if each.is_label and not each.is_text] or [
        each for each in columns if each.is_scored
    ]
    if len(likely) == 1:
        return likely[0]
    names = listed([_quoted(each.name) for each in likely or columns], 8)
    message = f"{'several columns may hold' if likely else 'no column holds'} the label: {names}"
    raise _unclear(text, message, "rename the column of the label to label")


def _text_columns(columns: Sequence[Column], text: Path) -> tuple[Column, Column | None]:
    """Return the column of the text, and of the second text of a pair."""
    by_name = {each.name.lower(): each for each in reversed(columns)}
    for first, second in PAIRS:
        if first in by_name and second in by_name:
            return by_name[first], by_name[second]
    texts = [each for each in columns if each.is_text]
    for one, other in combinations(texts, 2):
        if _is_numbered(one.name.lower(), other.name.lower()):
            return one, other
    usual = [by_name[name] for name in CANDIDATES if name in by_name]
    if len(usual) == 1:
        return usual[0], None
    longest = max(texts or columns, key=lambda each: sum(each.lengths), default=None)
    if longest is None or not any(longest.lengths):
        raise _unclear(text, "no column holds the text", "pass a table with a column of texts")
    return longest, None


def _is_numbered(one: str, other: str) -> bool:
    """Return whether two names differ only in one number or letter, as sentence1 and sentence2."""
    if len(one) != len(other):
        return False
    differing = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    return len(differing) == 1 and differing[0] in NUMBERED


def _problem(label: Column, text: Path) -> Keys:
    """Return the keys of the classes, or of scores."""
    if label.is_scored:
        return {"classification.problem": "regression"}
    if len(label.values) > MOST_CLASSES:
        message = f"column {_quoted(label.name)} has more than {MOST_CLASSES:,} different labels"
        raise _unclear(text, message, "rename the column of the label to label")
    numbers = sorted(label.numbers)
    if numbers and numbers == list(range(len(numbers))):
        return {"classification.num_labels": max(2, len(numbers))}
    by_number = {float(value): value for value in label.values} if numbers else {}
    names = [by_number[number] for number in numbers] or sorted(label.values)
    return {"classification.label_names": names}


def _labels_note(label: Column, keys: Keys) -> str:
    if "classification.problem" in keys:
        numbers = label.numbers
        return f"scores from {min(numbers):g} to {max(numbers):g}: regression"
    names = keys.get("classification.label_names")
    if names is None:
        num_classes = keys["classification.num_labels"]
        return f"classes 0 to {num_classes - 1}"
    return f"{counted(len(names), 'class', 'classes')}: {_listed(names)}"


def _tag_names(tags: Column, text: Path) -> list[str]:
    """Return the labels: `O` first, else sorted by type and prefix; names of numbers if they are numbers."""
    numbers = [each for each in tags.elements if isinstance(each, int)]
    if max(numbers, default=0) >= MOST_CLASSES or len(tags.elements) > MOST_CLASSES:
        message = f"column {_quoted(tags.name)} has more than {MOST_CLASSES:,} different labels"
        raise _unclear(text, message, f"rename the column of lists of labels to {TAG_COLUMNS[0]}")
    if len(numbers) == len(tags.elements):
        return [str(number) for number in range(max(numbers) + 1)]
    names = map(str, tags.elements)
    return sorted(names, key=lambda name: (name != OUTSIDE, name.partition("-")[::-1], name))


def _named(columns: Mapping[str, Column], names: Sequence[str], text: Path, content: str) -> Column:
    found = [columns[name] for name in names if name in columns] or list(columns.values())
    if len(found) != 1:
        seen = listed([*map(_quoted, columns)], 8) or "no lists"
        hint = f"rename the column of {content} to {names[0]}"
        raise _unclear(text, f"one column with {content} is expected, found {seen}", hint)
    return found[0]


def _listed(names: Sequence[str]) -> str:
    return printable(listed(names, 10))


def _quoted(name: str) -> str:
    return repr(printable(name))


def _unclear(place: Path, message: str, hint: str) -> ProjectError:
    return ProjectError("unclear-table", message, hint, str(place), EXIT_USAGE)
