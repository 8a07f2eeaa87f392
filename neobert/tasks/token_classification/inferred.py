"""Columns and labels of a table of words, inferred for a run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from neobert.plurals import counted, listed
from neobert.tasks.labelled_table import (
    MAX_CLASSES,
    NONE_NAMED,
    TEXT_SETTING,
    Column,
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
from neobert.tasks.token_classification.rows import LABEL_SETTING, TAG_COLUMNS, WORD_COLUMNS
from neobert.tasks.token_classification.spec import OUTSIDE

NO_LISTS = (
    "write JSON lines with a list of words and a list of labels per text; "
    "a file with a word and its label per line needs the name NAME.conll"
)


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer the columns of words and of their labels. Raises `ProjectError` if a column is unclear."""
    columns, first_rows, keys = read_columns(text)
    lists = {each.name: each for each in columns if each.elements}
    words = _find_list_column(lists, WORD_COLUMNS, text, "lists of words", TEXT_SETTING, named)
    others = {name: each for name, each in lists.items() if each is not words}
    tags = _find_list_column(others, TAG_COLUMNS, text, "lists of labels", LABEL_SETTING, named)
    keys |= column_keys(lists, WORD_COLUMNS, words, TEXT_SETTING)
    keys |= column_keys(lists, TAG_COLUMNS, tags, LABEL_SETTING)
    names = _tag_names(tags, text)
    keys["token_classification.label_names"] = names
    classes = f"{counted(len(names), 'class', 'classes')}: {listed_names(names)}"
    notes = f"words: column {quoted(words.name)}", f"labels: column {quoted(tags.name)}, {classes}"
    lengths = tuple(words.lengths)
    return LabelledTable(keys, notes, lengths, sample_texts(words), first_rows=first_rows)


def _tag_names(tags: Column, text: Path) -> list[str]:
    """Return the labels, `O` first, then by type and prefix; if all are numbers, each from 0 as text.

    Raises `ProjectError` if there are more than `MAX_CLASSES`.
    """
    numbers = [each for each in tags.elements if isinstance(each, int)]
    if max(numbers, default=0) >= MAX_CLASSES or len(tags.elements) > MAX_CLASSES:
        raise too_many_labels_error(tags, text, LABEL_SETTING)
    if len(numbers) == len(tags.elements):
        return [str(number) for number in range(max(numbers) + 1)]
    names = map(str, tags.elements)
    return sorted(names, key=lambda name: (name != OUTSIDE, name.partition("-")[::-1], name))


def _find_list_column(
    columns: Mapping[str, Column], names: Sequence[str], text: Path, content: str, key: str, named: Named
) -> Column:
    if not columns:
        raise unclear_table_error(text, f"one column with {content} is expected, found no lists", NO_LISTS)
    if (stated := stated_column(columns, key, named, text)) is not None:
        return stated
    found = [columns[name] for name in names if name in columns] or list(columns.values())
    if len(found) != 1:
        seen = listed([*map(quoted, columns)], 8)
        hint = f"name the column of {content}: --{key} NAME"
        raise unclear_table_error(text, f"one column with {content} is expected, found {seen}", hint)
    return found[0]
