"""Table of pairs of texts with a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from neobert.data.sources.pair_columns import POSITIVE, POSITIVES, QUERIES, SCORE, SCORES, parse_score
from neobert.data.sources.rows import TEXT, Field, Row, RowFormat
from neobert.data.sources.text_files import read_rows
from neobert.encoding.texts import require_text_format, size_and_digest
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import counted
from neobert.tasks.trained_columns import trained_columns

OPTIONS = {TEXT: "--query-column", POSITIVE: "--positive-column", SCORE: "--score-column"}


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Pairs of texts with their scores, in the order of the file.

    Attributes:
        name: name of the file, without its suffixes.
        identity: describes the content of the file and its columns.
    """

    name: str
    rows: list[Row]
    identity: list[str]


def read_scored_pairs(file: Path, requested: Mapping[str, str | None], folder: Path) -> ScoredPairs:
    """Read the pairs that have a score. Raises `ProjectError` unless the file has two pairs or more.

    Args:
        requested: column names by key of `OPTIONS`; None: the column of the model's run, else a usual name.
        folder: the model.
    """
    require_text_format(file)
    of_run = trained_columns(folder, file)
    columns = {name: column or of_run.get(name) for name, column in requested.items()}

    def field(name: str, candidates: tuple[str, ...]) -> Field:
        return Field(name, OPTIONS[name], columns[name], candidates)

    read = partial(parse_score, setting=OPTIONS[SCORE])
    score = replace(field(SCORE, SCORES), read=read, is_text=False)
    rows = RowFormat((field(TEXT, QUERIES), field(POSITIVE, POSITIVES), score), tsv_quotes=False)
    kept = [row for row in read_rows(file, rows) if row[SCORE] is not None]
    if len(kept) < 2:
        message = f"the table has {counted(len(kept), 'pair')} with a score (at least 2)"
        raise ProjectError("scored-pairs", message, "add pairs with scores", str(file), EXIT_USAGE)
    return ScoredPairs(
        file.name.partition(".")[0], kept, [*size_and_digest(file), *map(str, columns.values())]
    )
