"""Pairs of queries and documents, without copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from neobert.data.sources.pair_columns import POSITIVES, QUERIES
from neobert.data.sources.rows import TEXT, Field, RowFormat, without_whitespace_and_case
from neobert.data.sources.text_files import read_rows
from neobert.encoding.texts import open_texts, require_text_format, unusable_texts_error
from neobert.mining.request import Request

QUERY_OPTION, POSITIVE_OPTION = "--query-column", "--positive-column"
POSITIVE = "positive"


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
        """Return the number of a text; None for an unknown one."""
        return self._numbers.get(without_whitespace_and_case(text))


@dataclass(slots=True)
class Pairs:
    """Queries, documents, and which documents answer which query.

    Attributes:
        answers: numbers of the documents of each query, in the order of the rows.
        rows: number of rows.
        empty: rows without a query or without a document.
        copies: rows with the pair of an earlier row.
    """

    queries: DistinctTexts = field(default_factory=DistinctTexts)
    documents: DistinctTexts = field(default_factory=DistinctTexts)
    answers: list[list[int]] = field(default_factory=list)
    rows: int = 0
    empty: int = 0
    copies: int = 0

    def add(self, query: str, document: str) -> None:
        """Count a row, and add its pair unless a text is empty or the pair is known."""
        self.rows += 1
        if not query.strip() or not document.strip():
            self.empty += 1
            return
        place, number = self.queries.add(query), self.documents.add(document)
        if place == len(self.answers):
            self.answers.append([])
        if number in self.answers[place]:
            self.copies += 1
        else:
            self.answers[place].append(number)

    def excluded(self) -> list[set[int]]:
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
    fields = (
        Field(TEXT, QUERY_OPTION, request.query_column, QUERIES),
        Field(POSITIVE, POSITIVE_OPTION, request.positive_column, POSITIVES),
    )
    for row in read_rows(path, RowFormat(fields, tsv_quotes=False)):
        pairs.add(row[TEXT], row[POSITIVE])
    if not pairs.answers:
        raise unusable_texts_error(
            path, "the file has no pairs", "pass a table with a query and its document per row"
        )
    if request.corpus is not None:
        for text in open_texts(Path(request.corpus), None, "train"):
            if text.strip():
                pairs.documents.add(text)
    return pairs
