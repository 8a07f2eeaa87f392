"""Row format of pairs: a query, the document that answers it, and hard negatives. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.sources import pair_columns
from neobert.data.sources.pair_columns import POSITIVE, POSITIVES, QUERIES
from neobert.data.sources.rows import TEXT, TEXT_SETTING, Field, Row, RowFormat, choose_column, parse_text
from neobert.errors import ProjectError
from neobert.tasks.contrastive.score_cells import (
    SCORE_SETTING,
    parse_scores,
    require_score_per_document,
    require_two_scores,
    warn_about_unread_scores,
)
from neobert.tasks.contrastive.section import CONTRASTIVE

NEGATIVES, NUM_LEFT_OUT, SCORES = "negatives", "num_left_out", pair_columns.SCORE
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
"""Separator of the positives or negatives of a row, which holds strings; a space replaces it in texts."""


@dataclass(frozen=True, slots=True)
class PairRows(RowFormat):
    """Rows of pairs. Hard negatives are optional, per table and per row.

    Attributes:
        negatives: fields of hard negatives, each a text or a list of texts.
        most: maximum number of hard negatives per row.
        score: field of the positive's score, or of a list with one per document; None: none are read.
        may_lack_scores: whether a table may lack the column of scores.
    """

    negatives: tuple[Field, ...] = ()
    most: int = 0
    score: Field | None = None
    may_lack_scores: bool = False

    def columns(self, available: Mapping[str, object], location: str) -> dict[str, str]:
        """Return the column of each field that the table has. Raises DAT011 if a needed one is missing."""
        chosen = RowFormat.columns(self, available, location)
        for field in self.negatives:
            if field.column is not None:
                choose_column(available, field.column, location, field.setting)
            if column := _find_column(available, field):
                chosen[field.name] = column
        if self.score is None and len(self.fields) > 1:
            warn_about_unread_scores(available, location)
        elif self.score is not None and (not self.may_lack_scores or self.score.column in available):
            names, setting = self.score.candidates, self.score.setting
            chosen[SCORES] = choose_column(available, self.score.column, location, setting, names)
        return chosen

    def chosen(self, columns: Mapping[str, str]) -> RowFormat:
        """Return a copy that requires the columns of query and positive only: rows may lack negatives."""
        needed = tuple(replace(field, column=columns[field.name]) for field in self.fields)
        return replace(self, fields=needed, negatives=())

    def row(self, values: Mapping[str, Any], columns: Mapping[str, str], location: str) -> Row:
        """Return query, the joined positives and negatives, and the scores, if any, of these documents.

        Texts that are empty in a list, or occur twice, are left out. Raises DAT011 for anything but texts,
        DAT020 for anything but scores, or for scores next to several positives.
        """
        if column := columns.get(POSITIVE):
            values = {**values, column: _join_positives(values[column], column, location)}
        row = RowFormat.row(self, values, columns, location)
        texts = [text for field in self.negatives for text in _cell_texts(values, field, location)]
        different: dict[str, int] = {}
        for number, text in enumerate(texts):
            if text.strip():
                different.setdefault(text.replace(SEPARATOR, " "), number)
        kept = dict([*different.items()][: self.most])
        scores: tuple[float, ...] = ()
        if SCORES in columns and row[TEXT].strip() and row_positives(row):
            if len(row_positives(row)) > 1:
                message = f"the row has {len(row_positives(row))} positives, but a score belongs to one"
                raise ProjectError("DAT020", message, "write a row for each positive", location)
            scores = parse_scores(values.get(columns[SCORES]), location)
            require_score_per_document(scores, 1 + len(texts), self.most, location)
            require_two_scores(scores, len(kept), location)
            scores = (scores[0], *(scores[1 + number] for number in kept.values()))
        return {
            **row,
            NEGATIVES: SEPARATOR.join(kept),
            NUM_LEFT_OUT: len(texts) - len(different),
            SCORES: scores,
        }

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the rows, JSON-serializable."""
        columns = [field.column for field in self.negatives if field.column is not None]
        found = RowFormat.identity(self) | {"negatives": [self.most, columns]}
        return found if self.score is None else found | {"scores": self.score.column}


def row_positives(row: Row) -> list[str]:
    """Return the documents that answer the query, one pair each; a text by itself is its own document."""
    joined: str = row.get(POSITIVE, row[TEXT])
    return [text for text in joined.split(SEPARATOR) if text.strip()]


def _join_positives(cell: object, column: str, location: str) -> str:
    cells = cell if isinstance(cell, list | tuple) else [cell]
    texts = (parse_text(each, column, location, POSITIVE_SETTING).replace(SEPARATOR, " ") for each in cells)
    return SEPARATOR.join(dict.fromkeys(texts))


def row_negatives(row: Row) -> list[str]:
    """Return the hard negatives of a row, or an empty list if it has no such field."""
    joined: str = row.get(NEGATIVES, "")
    return joined.split(SEPARATOR) if joined else []


def _find_column(values: Mapping[str, object], field: Field) -> str | None:
    names = field.candidates if field.column is None else (field.column,)
    return next((name for name in names if name in values), None)


def _cell_texts(values: Mapping[str, Any], field: Field, location: str) -> Iterator[str]:
    column = _find_column(values, field)
    cell = None if column is None else values[column]
    if isinstance(cell, list | tuple):
        yield from (parse_text(each, str(column), location, field.setting) for each in cell)
    elif text := parse_text(cell, str(column), location, field.setting):  # an empty cell: the row has fewer
        yield text


def row_format(config: RunConfig) -> PairRows:
    """Return the fields of a row: query, positive, hard negatives and scores; with dropout, a text alone."""
    dataset, section = config.dataset, CONTRASTIVE.read_section(config)
    query = Field(TEXT, TEXT_SETTING, dataset.text_column, QUERIES)
    if section.positives == "dropout":
        lines = dataset.document_per_line
        return PairRows((query,), dataset.column_names, dataset.tsv_quotes, document_per_line=lines)
    fields = (query, Field(POSITIVE, POSITIVE_SETTING, section.positive_column, POSITIVES))
    columns = section.negative_columns or [None] * section.max_negatives
    negatives = tuple(
        Field(f"negative_{number}", NEGATIVE_SETTING, column, negative_column_names(number))
        for number, column in enumerate(columns, start=1)
    )
    score = None
    if section.score_column is not None:
        score = Field(SCORES, SCORE_SETTING, section.score_column)
    return PairRows(
        fields,
        dataset.column_names,
        dataset.tsv_quotes,
        negatives=negatives,
        most=section.max_negatives,
        score=score,
        may_lack_scores=bool(dataset.mixture),
    )


def reads_scores(config: RunConfig) -> bool:
    """Return whether training or evaluation reads scores of documents."""
    section = CONTRASTIVE.read_section(config)
    return section.score_column is not None or section.scored_eval_path is not None


def scored_row_format(config: RunConfig) -> PairRows:
    """Return the row format of the table of scored pairs: the training data's column names, or usual ones."""
    dataset, section = config.dataset, CONTRASTIVE.read_section(config)

    def field(name: str, setting: str, own: str | None, names: tuple[str, ...]) -> Field:
        return Field(name, setting, None, names if own is None or own in names else (own, *names))

    fields = (
        field(TEXT, TEXT_SETTING, dataset.text_column, QUERIES),
        field(POSITIVE, POSITIVE_SETTING, section.positive_column, POSITIVES),
    )
    score = field(SCORES, SCORE_SETTING, section.score_column, pair_columns.SCORES)
    return PairRows(fields, dataset.column_names, dataset.tsv_quotes, score=score)


def negative_column_names(number: int) -> tuple[str, ...]:
    """Return the usual names of the column of hard negative `number`, from 1."""
    return FIRST_NEGATIVES if number == 1 else (f"negative_{number}",)
