"""Columns of a table of choices, inferred for a run file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from neobert.plurals import listed
from neobert.tasks.labelled_table import (
    NONE_NAMED,
    TEXT_SETTING,
    Column,
    Keys,
    LabelledTable,
    Named,
    column_keys,
    named_column,
    quoted,
    read_columns,
    sample_texts,
    unclear_table_error,
)
from neobert.tasks.multiple_choice.rows import LABEL_SETTING, LISTS, PROMPTS

LABELS = ("label", "answerKey", "answer_key", "correct", "gold", "answer")
STARTS = {"sent1": "sent2"}
"""Column of the text that begins each choice, by the name of the prompt column."""
NUMBERED = re.compile(r"(?:choice|ending|option|op|sol|alternative)s?[_ -]?(\d+|[a-h])", re.IGNORECASE)
LETTERS = "ABCDEFGH"


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer the columns of prompts, choices and labels. Raises `ProjectError` if one is unclear."""
    columns, first_rows, keys = read_columns(text)
    by_name = {each.name: each for each in columns}
    prompt = named_column(by_name, PROMPTS, text, "prompts", TEXT_SETTING, named)
    label = named_column(by_name, LABELS, text, "labels", LABEL_SETTING, named)
    start = by_name.get(STARTS.get(prompt.name, ""))
    choices, of_choices = _choice_columns(by_name, text)
    keys |= of_choices
    keys |= column_keys(by_name, PROMPTS, prompt, TEXT_SETTING)
    if start is not None:
        keys["multiple_choice.start_column"] = start.name
    if label.name != LABELS[0]:
        keys[LABEL_SETTING] = label.name
    names = listed([quoted(each.name) for each in choices], 8)
    most = of_choices["multiple_choice.max_choices"]
    notes = [f"prompt: column {quoted(prompt.name)}", f"choices: {names}, up to {most} per row"]
    if start is not None:
        notes.append(f"start of each choice: column {quoted(start.name)}")
    notes.append(f"label: column {quoted(label.name)}")
    each_row = zip(prompt.lengths, *(each.lengths for each in choices), strict=True)
    lengths = tuple(
        first + size
        for first, *others in each_row
        for size in (others if len(others) > 1 else [others[0] // most] * most)
    )
    return LabelledTable(keys, tuple(notes), lengths, sample_texts(prompt, *choices), first_rows=first_rows)


def _choice_columns(columns: Mapping[str, Column], text: Path) -> tuple[list[Column], Keys]:
    """Return the columns of the choices, and their keys: one with a list, or several with a number or letter.

    Raises `ProjectError` if no column fits.
    """
    lists = {name: each for name, each in columns.items() if each.max_elements > 1}
    named = [lists[name] for name in LISTS if name in lists] or (
        list(lists.values()) if len(lists) == 1 else []
    )
    if named:
        keys: Keys = {"multiple_choice.max_choices": named[0].max_elements}
        return named[:1], keys | column_keys(columns, LISTS, named[0], "multiple_choice.choices_column")
    numbered = _numbered_columns(columns)
    if len(numbered) < 2:
        message = f"no column of choices found (columns: {listed([*map(quoted, columns)], 8)})"
        hint = f"rename a column of lists to {LISTS[0]}, or columns of one choice to choice_0, choice_1"
        raise unclear_table_error(text, message, hint)
    names = [each.name for each in numbered]
    return numbered, {
        "multiple_choice.choice_columns": names,
        "multiple_choice.max_choices": len(names),
    }


def _numbered_columns(columns: Mapping[str, Column]) -> list[Column]:
    """Return the columns of one choice: names with a number or letter, else the letters from A without a gap.

    Next to names such as option1, a letter is something else, such as E for an explanation.
    """
    numbered = [column for name, column in columns.items() if NUMBERED.fullmatch(name)]
    if len(numbered) > 1:  # one alone is another column, such as sold
        return numbered
    by_letter = {name.upper(): column for name, column in columns.items()}
    return [by_letter[letter] for letter in takewhile(by_letter.__contains__, LETTERS)]
