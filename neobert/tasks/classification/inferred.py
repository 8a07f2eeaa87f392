"""Columns, classes or scores of a table of texts, inferred for a run file."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from neobert.data.sources.file_listing import is_saved_dataset
from neobert.data.sources.rows import CANDIDATES, NESTED, TRUTH_VALUES
from neobert.data.sources.saved_rows import class_names
from neobert.plurals import counted, listed
from neobert.tasks.classification.labels import MISSING
from neobert.tasks.classification.rows import LABEL_SETTING, PAIR_SETTING, PROBLEM_SETTING, TEXT_CANDIDATES
from neobert.tasks.labelled_table import (
    MAX_CLASSES,
    MAX_NUMBERED,
    NO_TEXT,
    NONE_NAMED,
    TEXT_SETTING,
    Column,
    Keys,
    LabelledTable,
    Named,
    column_keys,
    listed_names,
    quoted,
    read_columns,
    sample_texts,
    stated_column,
    too_many_labels_error,
    unclear_table_error,
)
from neobert.tasks.table_files import training_tables

LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "score", "rating", "stars")
AMOUNTS = ("score", "scores", "rating", "similarity", "points", "grade", "stars", "age", "year", "price")
"""Names of columns whose many whole numbers are scores even if they repeat."""
CLASSES, REGRESSION = "classes", "regression"
PAIRS = (
    ("premise", "hypothesis"), ("question", "sentence"), ("question", "answer"), ("question", "passage"),
    ("query", "passage"), ("query", "document"), ("context", "response"),
)  # fmt: skip
NUMBERED = (("1", "2"), ("a", "b"))
SEPARATORS = (";", "|", ",")
"""Separators between the labels of a multi-label text."""
WRITTEN_NUMBER = re.compile(r"[-+]?[$€£¥]?[-+]? ?[0-9]+(?:[.,'][0-9]{3})*(?:[.,][0-9]*)?(?: ?[%$€£¥])?")
"""A number as written for human readers: `0,5`, `45%`, `$1,250.00`."""
PLAIN_NUMBER = frozenset("+-.0123456789")


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer text columns, label column, and classes or scores. Raises `ProjectError` if one is unclear."""
    columns, first_rows, keys = read_columns(text)
    by_name = {each.name: each for each in columns}
    stated = stated_column(by_name, LABEL_SETTING, named, text)
    label = stated or _label_column(columns, text)
    first, second = _text_columns([each for each in columns if each is not label], text, named)
    notes = [f"text: column {quoted(first.name)}"]
    if second is not None:
        notes = [f"texts: columns {quoted(first.name)} and {quoted(second.name)}"]
        keys[PAIR_SETTING] = second.name
    keys |= column_keys(by_name, TEXT_CANDIDATES, first, TEXT_SETTING)
    keys[LABEL_SETTING] = label.name
    keys |= _problem_keys(label, text, named.get(PROBLEM_SETTING))
    notes.append(f"label: column {quoted(label.name)}, {_labels_note(label, keys)}")
    names = keys.get("classification.label_names", ())
    texts = [first] if second is None else [first, second]
    for each in texts:
        if any(each.lengths) and not each.values:  # objects, lists or bytes
            raise unclear_table_error(text, f"column {quoted(each.name)} holds no text", NESTED)
    notes += [*_label_combinations_note(names), *_name_notes(label, names)]
    if first_rows is None and (single := [name for name in names if label.values[name] == 1]):
        notes.append(f"in one row only, perhaps misspelt: {listed_names(single)}")
    if names:
        notes += _several_labels_note(texts, label)
    if stated is None and (others := _other_labels(columns, label)):
        notes.append(f"other columns with few values: {others}; to choose one: --{LABEL_SETTING} NAME")
    sizes = map(sum, zip(*(each.lengths for each in texts), strict=True))
    # Rows without a text or a label are left out of training, so they do not count in its steps.
    lengths = tuple(size for size, name in zip(sizes, label.lengths, strict=True) if size and name)
    if not lengths:
        raise unclear_table_error(text, "no row has both a text and a label", "label some of the texts")
    return LabelledTable(keys, tuple(notes), lengths, sample_texts(*texts), first_rows=first_rows)


def _label_column(columns: Sequence[Column], text: Path) -> Column:
    """Return the column that holds the label, by its name or else by its values. Raises if unclear."""
    by_name = {each.name.lower(): each for each in reversed(columns)}
    named = next((by_name[name] for name in LABELS if name in by_name), None)
    if named is not None:
        return named
    likely = [each for each in columns if each.is_label and not each.is_text] or [
        each for each in columns if each.is_scored
    ]
    likely = likely or [each for each in columns if each.has_repeats and not each.is_text]
    if len(likely) == 1:
        return likely[0]
    names = listed([quoted(each.name) for each in likely or columns], 8)
    message = f"no column holds the label (columns: {names})"
    if likely:
        message = f"several columns may hold the label: {names}"
    has_words = any(each.elements for each in columns)
    words = "pass --task token_classification if words have labels, or " if has_words else ""
    if len(likely) > 1 and all({*each.values} in ({"0", "1"}, {*TRUTH_VALUES}) for each in likely):
        words = "if a text has several labels, train a run for each column: "
    raise unclear_table_error(text, message, f"{words}name the column of the label: --{LABEL_SETTING} NAME")


def _other_labels(columns: Sequence[Column], label: Column) -> str:
    likely = (each for each in columns if each.is_label and not each.is_text and not each.is_scored)
    return listed([quoted(each.name) for each in likely if each is not label], 5)


def _text_columns(columns: Sequence[Column], text: Path, named: Named) -> tuple[Column, Column | None]:
    all_columns = {each.name: each for each in columns}
    stated = stated_column(all_columns, TEXT_SETTING, named, text)
    pair = stated_column(all_columns, PAIR_SETTING, named, text)
    if stated is not None:
        return stated, pair
    if pair is not None:
        return _text_columns([each for each in columns if each is not pair], text, NONE_NAMED)[0], pair
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
        raise unclear_table_error(text, "no column holds the text", "pass a table with a column of texts")
    return longest, None


def _is_numbered(one: str, other: str) -> bool:
    """Return whether two names differ only in one number or letter, such as sentence1 and sentence2."""
    if len(one) != len(other):
        return False
    differing = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    return len(differing) == 1 and differing[0] in NUMBERED


def _problem_keys(label: Column, text: Path, stated: str | None) -> Keys:
    problem = stated or _likely_problem(label, text)
    keys: Keys = {PROBLEM_SETTING: problem} if stated or problem == REGRESSION else {}
    if problem != REGRESSION:
        keys |= _class_keys(label, text)
    return keys


def _likely_problem(label: Column, text: Path) -> str:
    """Return classes or regression: many whole numbers are classes if they repeat, like ids."""
    is_amount = label.name.lower() in AMOUNTS or not label.has_repeats
    is_scored = label.has_fractions or (len(label.numbers) > MAX_NUMBERED and is_amount)
    return REGRESSION if is_scored and not _saved_class_names(label, text) else CLASSES


def _saved_class_names(label: Column, text: Path) -> list[str]:
    return class_names(training_tables(text)[0], label.name) if is_saved_dataset(text) else []


def _class_keys(label: Column, text: Path) -> Keys:
    if stated := _saved_class_names(label, text):
        if any(name.isdecimal() and int(name) != number for number, name in enumerate(stated)):
            return {"classification.num_labels": len(stated)}  # a 1 in the rows is class 1, not the class "1"
        return {"classification.label_names": stated}
    if label.elements and not label.values:
        message = f"column {quoted(label.name)} has lists, and a text has one class"
        raise unclear_table_error(
            text, message, "write one label per row, or a column of 0 and 1 and a run for each label"
        )
    if not label.values:
        message = f"column {quoted(label.name)} holds neither text nor numbers"
        hint = f"write each label to a column of its own, or name another column: --{LABEL_SETTING} NAME"
        raise unclear_table_error(text, message, hint)
    if len(label.values) > MAX_CLASSES and not label.has_repeats:
        if note := _unparsed_numbers_note(list(label.values)):
            hint = "write plain numbers, such as 0.5, then repeat the command"
            raise unclear_table_error(text, f"column {quoted(label.name)}: {note}", hint)
        raise too_many_labels_error(label, text, LABEL_SETTING)
    numbers = sorted(set(label.numbers))
    if (num_classes := len(numbers) or len(label.values)) == 1:
        message = f"column {quoted(label.name)} has 1 class (at least 2)"
        raise unclear_table_error(text, message, f"name the column of the label: --{LABEL_SETTING} NAME")
    if numbers == list(range(num_classes)) and num_classes < len(label.values):  # also written as 1.0
        return {"classification.num_labels": num_classes}
    # Classes 0, 1, ... have names too: a prediction is then what the column says, and not LABEL_1.
    by_number = {float(value): value for value in label.values} if numbers else {}
    names = [by_number[number] for number in numbers] or sorted(label.values)
    return {"classification.label_names": names}


def _label_combinations_note(names: Sequence[str]) -> list[str]:
    """Return at most one note: the names look like formatted numbers, or like several labels joined."""
    if note := _unparsed_numbers_note(names):
        return [note]
    for separator in SEPARATORS:
        combined = [name for name in names if separator in name]
        parts = Counter(part.strip() for name in names for part in name.split(separator))
        if combined and 2 * sum(count > 1 for count in parts.values()) > len(parts):
            return [
                f"{quoted(combined[0])} looks like several labels, but a text has one class: each "
                "combination is a class. For separate labels, write a column of 0 and 1 for each label, and "
                "train a run on each column"
            ]
    return []


def _unparsed_numbers_note(names: Sequence[str]) -> str:
    """Return a note if all names look like numbers, one with a decimal comma or a unit; else ''."""
    written = [name for name in names if not PLAIN_NUMBER.issuperset(name)]
    if not written or not all(map(WRITTEN_NUMBER.fullmatch, names)):
        return ""
    if any("," in name and {*names}.issuperset(name.split(",")) for name in names):  # labels 1, 2 and 1,2
        return ""
    return f"{quoted(written[0])} is read as a name: scores have a decimal point, and no comma or unit"


def _name_notes(label: Column, names: Sequence[str]) -> Iterator[str]:
    spelled = {name: unicodedata.normalize("NFKC", name).casefold() for name in names}
    counts = Counter(spelled.values())
    if alike := [name for name in names if counts[spelled[name]] > 1]:
        yield f"classes that differ only in case or encoding: {listed_names(alike)}"
    if missing := [name for name in names or label.values if name.lower() in MISSING]:
        yield (
            f"labels like missing values: {listed_names(missing)}; to leave out these rows, empty the label"
        )
    if label.name in label.values:
        yield (
            f"column {quoted(label.name)} has its own name as a label: remove a repeated header line, or "
            "write one, such as text and label, if there is none"
        )


def _several_labels_note(texts: Sequence[Column], label: Column) -> list[str]:
    labelled: dict[tuple[int, ...], tuple[int, int]] = {}
    disputed: dict[tuple[int, ...], tuple[int, int]] = {}
    of_rows = zip(*(each.digests for each in texts), strict=True)
    for row, (text, name) in enumerate(zip(of_rows, label.digests, strict=True), start=1):
        if name != NO_TEXT and any(digest != NO_TEXT for digest in text):
            earlier, first_name = labelled.setdefault(text, (row, name))
            if name != first_name:
                disputed.setdefault(text, (earlier, row))
    if not disputed:
        return []
    first, other = next(iter(disputed.values()))
    texts_with = f"{counted(len(disputed), 'text')} with several labels"
    return [f"{texts_with}; first: rows {first:,} and {other:,}, the header not counted"]


def _labels_note(label: Column, keys: Keys) -> str:
    numbers = label.numbers
    if keys.get(PROBLEM_SETTING) == REGRESSION:
        seen = f"scores from {min(numbers):g} to {max(numbers):g}" if numbers else "scores"
        other = "" if label.has_fractions else f"; for classes: --{PROBLEM_SETTING} {CLASSES}"
        return f"{seen}: regression{other}"
    names = keys.get("classification.label_names")
    if names is None:
        num_classes = keys["classification.num_labels"]
        return f"classes 0 to {num_classes - 1}"
    are_numbered = sorted(numbers) in ([], [*range(len(names))])  # names, or numbers that only classes have
    # A saved dataset has the numbers of its classes, whose names are words.
    are_ratings = len(names) > 2 and not are_numbered and all(map(PLAIN_NUMBER.issuperset, names))
    other = f"; for scores: --{PROBLEM_SETTING} {REGRESSION}" if are_ratings else ""
    return f"{counted(len(names), 'class', 'classes')}: {listed_names(names)}{other}"
