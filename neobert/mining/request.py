"""Arguments of mining."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Arguments of mining; None selects the usual names of columns, or the default of the device.

    Attributes:
        pairs: table with a query and its document per row.
        output: .jsonl file.
        corpus: further documents, such as a text file; None: the documents of the pairs alone.
        negatives: number of negatives per pair.
        max_share: highest score of a negative, as a share of the score of the query's document.
    """

    folder: str
    pairs: str
    output: str
    query_column: str | None = None
    positive_column: str | None = None
    corpus: str | None = None
    negatives: int = 1
    max_share: float = 0.95
    dtype: str | None = None
    device: str | None = None
