"""Scores in the rows of a table: a number, or a list with one for each document. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from neobert.data.sources.pair_columns import CODE, SCORES, parse_score
from neobert.data.sources.rows import TRUTH_VALUES
from neobert.errors import ProjectError
from neobert.plurals import counted

SCORE_SETTING = "contrastive.score_column"


def parse_scores(cell: object, location: str) -> tuple[float, ...]:
    """Return the score or scores of a cell. Raises DAT020 for anything but finite numbers."""
    cells = (cell or [None]) if isinstance(cell, list | tuple) else [cell]
    return tuple(parse_score(each, location, SCORE_SETTING) for each in cells)


def require_score_per_document(
    scores: tuple[float, ...], documents: int, max_negatives: int, location: str
) -> None:
    """Raise DAT020 unless there are as many scores as documents in the row."""
    if len(scores) == documents:
        return
    is_unread = len(scores) > documents == max_negatives + 1
    hint = (
        f"set contrastive.max_negatives to {len(scores) - 1}"
        if is_unread
        else "write a number for a pair, or a list with the score of the positive and of each negative; "
        "or set contrastive.max_negatives to 0 to read no negatives"
    )
    message = f"the row has {counted(len(scores), 'score')} for {counted(documents, 'document')}"
    raise ProjectError(CODE, message, hint, location)


def require_two_scores(scores: tuple[float, ...], kept: int, location: str) -> None:
    """Raise DAT020 if a teacher's scores cover a single document: a softmax over one is always 1."""
    if len(scores) > 1 and not kept:
        message = "the row has a teacher's scores, but no negative is read"
        hint = "remove the row, or set contrastive.max_negatives to 1 or more"
        raise ProjectError(CODE, message, hint, location)


def warn_about_unread_scores(cells: Mapping[str, object], location: str) -> None:
    """Warn, once per column, about a column that looks like scores and is not read."""
    for name in SCORES:
        if _is_finite_score(cells.get(name)):
            _warn_once(name, location)


@cache
def _warn_once(column: str, location: str) -> None:
    import logging  # `lint` reads this module, and never warns

    logging.getLogger(__name__).warning(
        "%s: column %s is not read, and every row is a positive pair; to train on its scores, set %s",
        location,
        column,
        SCORE_SETTING,
    )


def _is_finite_score(cell: object) -> bool:
    try:
        return math.isfinite(float(TRUTH_VALUES.get(str(cell), cell)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
