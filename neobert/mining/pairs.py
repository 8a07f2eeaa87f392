"""Pairs of queries and documents, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neobert.data.sources.pair_columns import POSITIVE, POSITIVES, QUERIES
from neobert.data.sources.rows import TEXT, Field, RowFormat, parse_text, without_whitespace_and_case
from neobert.data.sources.text_files import read_rows
from neobert.encoding.texts import open_texts, require_text_format, unusable_texts_error
from neobert.mining.request import Request
from neobert.tasks.trained_columns import trained_columns

QUERY_OPTION, POSITIVE_OPTION = "--query-column", "--positive-column"


@dataclass(slots=True)
class DistinctTexts:
    """Distinct texts in order; texts that differ only in case or whitespace count as one."""

    texts: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        """Return the number of a text, from 0; a new one is added."""
        number = self._numbers.setdefault(without_whitespace_and_case(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def find_number(self, text: str) -> int | None:
        """Return the number of a text, or None if the text is unknown."""
        return self._numbers.get(without_whitespace_and_case(text))


@dataclass(slots=True)
class Pairs:
    """Queries, documents, and which documents answer which query.

    Attributes:
        answers: numbers of the documents of each query, in the order of the rows.
        num_empty: rows without a query or without a document.
        num_copies: pairs that occur earlier, in another row or in the same row.
    """

    queries: DistinctTexts = field(default_factory=DistinctTexts)
    documents: DistinctTexts = field(default_factory=DistinctTexts)
    answers: list[list[int]] = field(default_factory=list)
    num_rows: int = 0
    num_empty: int = 0
    num_copies: int = 0

    def add(self, query: str, documents: Sequence[str]) -> None:
        """Count a row, and add its pairs unless a text is empty or the pair is known."""
        self.num_rows += 1
        documents = [document for document in documents if document.strip()]
        if not query.strip() or not documents:
            self.num_empty += 1
            return
        place = self.queries.add(query)
        if place == len(self.answers):
            self.answers.append([])
        for number in map(self.documents.add, documents):
            if number in self.answers[place]:
                self.num_copies += 1
            else:
                self.answers[place].append(number)

    def excluded_documents(self) -> list[set[int]]:
        """Return the documents that each query cannot have as negatives: its answers, and its own text."""
        own = (self.documents.find_number(text) for text in self.queries.texts)
        return [
            {*answers, *([] if number is None else [number])}
            for answers, number in zip(self.answers, own, strict=True)
        ]


def read_pairs(request: Request) -> Pairs:
    """Read the pairs and the corpus of a request. Raises `ProjectError` for an unusable file or no pairs."""
    path, pairs = Path(request.pairs), Pairs()
    require_text_format(path)
    for row in read_rows(path, _row_format(request)):
        pairs.add(row[TEXT], row[POSITIVE] or ())
    if not pairs.answers:
        raise unusable_texts_error(
            path, "the file has no pairs", "pass a table with a query and its document per row"
        )
    if request.corpus is not None:
        for text in open_texts(Path(request.corpus), None, "train"):
            if text.strip():
                pairs.documents.add(text)
    return pairs


def _row_format(request: Request) -> RowFormat:
    """Return the columns to read: the requested ones, else those of the model's run that the table has."""
    columns = trained_columns(Path(request.folder), Path(request.pairs))
    query = Field(TEXT, QUERY_OPTION, request.query_column or columns.get(TEXT), QUERIES)
    column = request.positive_column or columns.get(POSITIVE)
    positive = Field(POSITIVE, POSITIVE_OPTION, column, POSITIVES, read=_parse_positives)
    return RowFormat((query, positive), tsv_quotes=False)


def _parse_positives(cell: object, location: str) -> list[str]:
    """Return the documents of a cell, which is a text or a list. Raises `ProjectError` DAT011 for others."""
    cells = cell if isinstance(cell, list | tuple) else [cell]
    return [parse_text(each, POSITIVE, location, POSITIVE_OPTION) for each in cells]
