"""Row format of multiple choice: the prompt, the beginning of the choices, the choices, and the label."""

from __future__ import annotations

from collections.abc import Iterable

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import TEXT, TEXT_SETTING, Field, RowFormat
from neobert.tasks.multiple_choice.labels import CHOICES, LABEL, ChoiceListParser, RowCheck, parse_label
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE

START, CHOICE = "start", "choice_"
PROMPTS = ("question", "ctx", "sent1", "prompt", "premise")
LISTS = ("choices", "endings", "options")
LIST_SETTING, COLUMNS_SETTING = "multiple_choice.choices_column", "multiple_choice.choice_columns"
START_SETTING, LABEL_SETTING = "multiple_choice.start_column", "multiple_choice.label_column"


def choice_fields(config: RunConfig) -> tuple[str, ...]:
    """Return the field names of the choices: a numbered one per choice column, else `choices` for a list."""
    columns = MULTIPLE_CHOICE.read_section(config).choice_columns
    return (CHOICES,) if columns is None else tuple(f"{CHOICE}{at}" for at in range(len(columns)))


def choice_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that begin with `choice_`: fields of a single choice each."""
    return tuple(name for name in names if name.startswith(CHOICE))


def row_format(config: RunConfig) -> RowFormat:
    """Return the fields of a row: prompt, start of the choices if set, choices, and label.

    The choices are one list, or a field per column of choice_columns.
    """
    dataset, section, names = config.dataset, MULTIPLE_CHOICE.read_section(config), choice_fields(config)
    fields = [Field(TEXT, TEXT_SETTING, dataset.text_column, PROMPTS)]
    if section.start_column is not None:
        fields.append(Field(START, START_SETTING, section.start_column))
    if section.choice_columns is None:
        fields.append(
            Field(CHOICES, LIST_SETTING, section.choices_column, LISTS, ChoiceListParser(LIST_SETTING))
        )
    else:
        columns = zip(names, section.choice_columns, strict=True)
        fields += [Field(name, COLUMNS_SETTING, column) for name, column in columns]
    fields.append(Field(LABEL, LABEL_SETTING, section.label_column, read=parse_label, is_text=False))
    check = RowCheck(names, section.max_choices)
    return RowFormat(tuple(fields), dataset.column_names, dataset.tsv_quotes, check)
