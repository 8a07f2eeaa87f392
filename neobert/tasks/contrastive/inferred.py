"""Columns of a table of pairs, inferred for a run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from neobert.data.sources.pair_columns import LABELS, POSITIVES, QUERIES, SCORES
from neobert.data.sources.rows import TRUTH_VALUES
from neobert.errors import ProjectError
from neobert.plurals import listed
from neobert.tasks.contrastive.rows import (
    FIRST_NEGATIVES,
    NEGATIVE_SETTING,
    POSITIVE_SETTING,
    negative_column_names,
)
from neobert.tasks.contrastive.score_cells import SCORE_SETTING
from neobert.tasks.contrastive.section import MAX_NEGATIVES
from neobert.tasks.contrastive.spec import MAX_SETTING
from neobert.tasks.labelled_table import (
    NONE_NAMED,
    TEXT_SETTING,
    Column,
    LabelledTable,
    Named,
    column_keys,
    known_columns,
    named_column,
    quoted,
    read_columns,
    sample_texts,
    stated_column,
)


def infer(text: Path, named: Named = NONE_NAMED) -> LabelledTable:
    """Infer the columns of queries, documents, hard negatives and scores.

    Raises `ProjectError` if no column of queries or of documents is found.
    """
    try:
        columns, first_rows, keys = read_columns(text)
    except ProjectError as error:
        alone = "; for texts alone, write a run file with contrastive.positives: dropout"
        raise replace(error, hint=error.hint + alone) from None
    by_name = {each.name: each for each in columns}
    query = named_column(by_name, QUERIES, text, "queries", TEXT_SETTING, named)
    others = {name: each for name, each in by_name.items() if each is not query}
    positive = named_column(others, POSITIVES, text, "documents", POSITIVE_SETTING, named)
    negatives = _negative_columns(others)
    keys |= column_keys(by_name, QUERIES, query, TEXT_SETTING)
    keys |= column_keys(others, POSITIVES, positive, POSITIVE_SETTING)
    most = min(MAX_NEGATIVES, sum(max(1, each.max_different) for each in negatives))
    keys[MAX_SETTING] = most
    notes = [f"pairs: columns {quoted(query.name)} and {quoted(positive.name)}"]
    if positive.max_different > 1:
        notes.append(f"several positives: up to {positive.max_different} per row, one pair each")
    if negatives:
        names = listed([quoted(each.name) for each in negatives], 8)
        if any(not each.name.islower() for each in negatives):
            keys[NEGATIVE_SETTING] = [each.name for each in negatives]
        notes.append(f"hard negatives: {names}, up to {most} per pair")
    score = stated_column(others, SCORE_SETTING, named, text)
    if score := score or _score_column(others, positive, has_negatives=bool(negatives)):
        keys[SCORE_SETTING] = score.name
        loss = "KL divergence from a teacher" if negatives else "CoSENT"
        notes.append(f"scores: column {quoted(score.name)}; the loss is {loss}")
    notes += [
        _unread_labels_note(each)
        for each in known_columns(others, LABELS)
        if each is not score and len(each.values) > 1
    ]
    # A cell with a list is several texts.
    lengths = tuple(
        length // max(1, each.max_different)
        for each in (query, positive, *negatives)
        for length in each.lengths
        for _ in range(max(1, each.max_different))
    )
    sample = sample_texts(query, positive, *negatives)
    return LabelledTable(keys, tuple(notes), lengths, sample, first_rows=first_rows)


def _negative_columns(columns: Mapping[str, Column]) -> list[Column]:
    first = known_columns(columns, FIRST_NEGATIVES)[:1]
    names = [name for number in range(2, MAX_NEGATIVES + 1) for name in negative_column_names(number)]
    return first + known_columns(columns, names) if first else []


def _score_column(columns: Mapping[str, Column], positive: Column, *, has_negatives: bool) -> Column | None:
    """Return the column of scores, lists of a teacher's scores if there are negatives, or None."""
    found = (each for each in known_columns(columns, SCORES) if each is not positive)
    return next((each for each in found if (each.is_list if has_negatives else _has_pair_scores(each))), None)


def _unread_labels_note(labels: Column) -> str:
    values = listed([*map(quoted, sorted(labels.values))], 8)
    return f"not read: column {quoted(labels.name)} ({values}); remove rows whose texts should not be similar"


def _has_pair_scores(column: Column) -> bool:
    """Return whether values are scores of pairs: 0 and 1, truth values, or numbers other than class ids."""
    if {*column.values} == {*TRUTH_VALUES}:
        return True
    numbers = column.numbers
    return bool(numbers) and (set(numbers) <= {0, 1} or column.name.lower() not in LABELS or column.is_scored)
