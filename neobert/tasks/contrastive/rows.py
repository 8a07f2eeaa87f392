"""Row format of pairs: a query, the document that answers it, and hard negatives. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources.pair_columns import POSITIVES, QUERIES
from neobert.data.sources.rows import TEXT, TEXT_SETTING, Field, Row, RowFormat, choose_column, text_of
from neobert.tasks.contrastive.section import CONTRASTIVE

POSITIVE, NEGATIVES, NUM_LEFT_OUT = "positive", "negatives", "num_left_out"
POSITIVE_SETTING, NEGATIVE_SETTING = "contrastive.positive_column", "contrastive.negative_columns"
FIRST_NEGATIVES = (
    "negative",
    "negatives",
    "neg",
    "hard_negative",
    "hard_negatives",
    "hard_neg",
    "negative_1",
)
"""Usual names of the column of the first hard negative."""
SEPARATOR = "\x1e"
"""Between the negatives of a row, which becomes a space in a text: a row holds strings."""


@dataclass(frozen=True, slots=True)
class PairRows(RowFormat):
    """Rows of pairs. A table, or a row, without hard negatives has none.

    Attributes:
        negatives: fields of hard negatives, each a text or a list of texts.
        most: most hard negatives of a row.
    """

    negatives: tuple[Field, ...] = ()
    most: int = 0

    def columns(self, available: Mapping[str, object], place: str) -> dict[str, str]:
        """Return the column of each field that the table has. Raises DAT011 without query or positive."""
        chosen = RowFormat.columns(self, available, place)
        for field in self.negatives:
            if field.column is not None:
                choose_column(available, field.column, place, field.setting)
            if column := _column_in(available, field):
                chosen[field.name] = column
        return chosen

    def chosen(self, columns: Mapping[str, str]) -> RowFormat:
        """Return a copy that needs query and positive alone: a row may lack negatives."""
        needed = tuple(replace(field, column=columns[field.name]) for field in self.fields)
        return replace(self, fields=needed, negatives=())

    def row(self, values: Mapping[str, Any], columns: Mapping[str, str], place: str) -> Row:
        """Return query, positive and the joined negatives. Raises DAT011 for anything but texts.

        Negatives that are empty in a list, or occur twice, are left out.
        """
        texts = [text for field in self.negatives for text in _texts(values, field, place)]
        different = dict.fromkeys(text.replace(SEPARATOR, " ") for text in texts if text.strip())
        return {
            **RowFormat.row(self, values, columns, place),
            NEGATIVES: SEPARATOR.join([*different][: self.most]),
            NUM_LEFT_OUT: len(texts) - len(different),
        }

    def identity(self) -> dict[str, Any]:
        """Return what the rows depend on."""
        columns = [field.column for field in self.negatives if field.column is not None]
        return RowFormat.identity(self) | {"negatives": [self.most, columns]}


def negatives_of(row: Row) -> list[str]:
    """Return the hard negatives of a row."""
    joined: str = row[NEGATIVES]
    return joined.split(SEPARATOR) if joined else []


def _column_in(values: Mapping[str, object], field: Field) -> str | None:
    names = field.candidates if field.column is None else (field.column,)
    return next((name for name in names if name in values), None)


def _texts(values: Mapping[str, Any], field: Field, place: str) -> Iterator[str]:
    column = _column_in(values, field)
    cell = None if column is None else values[column]
    if isinstance(cell, list | tuple):
        yield from (text_of(each, str(column), place, field.setting) for each in cell)
    elif text := text_of(cell, str(column), place, field.setting):  # an empty cell: the row has fewer
        yield text


def rows_of(config: RunConfig) -> PairRows:
    """Return the row format of a run."""
    dataset, section = config.dataset, CONTRASTIVE.of(config)
    fields = (
        Field(TEXT, TEXT_SETTING, dataset.text_column, QUERIES),
        Field(POSITIVE, POSITIVE_SETTING, section.positive_column, POSITIVES),
    )
    columns = section.negative_columns or [None] * section.max_negatives
    negatives = tuple(
        Field(f"negative_{number}", NEGATIVE_SETTING, column, names_of(number))
        for number, column in enumerate(columns, start=1)
    )
    most = section.max_negatives
    return PairRows(fields, dataset.column_names, dataset.tsv_quotes, negatives=negatives, most=most)


def names_of(number: int) -> tuple[str, ...]:
    """Return the usual names of the column of hard negative `number`, from 1."""
    return FIRST_NEGATIVES if number == 1 else (f"negative_{number}",)
