"""Columns of pairs: usual names, such as in sentence-transformers data, and scores in cells."""

from __future__ import annotations

from neobert.data.sources.rows import TRUTH_VALUES, describe_kind
from neobert.errors import ProjectError
from neobert.printable import printable

POSITIVE, SCORE = "positive", "scores"
"""Fields of a row of pairs, beside its query."""
QUERIES = ("query", "anchor", "question", "sentence1", "question1", "text1", "sent0", "premise", "text")
POSITIVES = (
    "positive", "pos", "document", "corpus", "passage", "answer", "sentence2", "question2", "text2", "sent1",
    "hypothesis",
)  # fmt: skip
LABELS = ("label", "labels", "gold_label", "is_duplicate")
SCORES = ("score", "scores", "similarity", "similarity_score", "relatedness_score", *LABELS)
CODE = "DAT020"
LARGEST_SCORE = 1e30
"""Largest score: its differences fit fp32, in which scores are stored."""


def parse_score(cell: object, location: str, setting: str) -> float:
    """Return the number in a cell. Raises DAT020 for anything but a finite number."""
    if cell is None or cell == "":
        hint = f"remove the row, or set {setting} to another column"
        raise ProjectError(CODE, "the row has no score", hint, location)
    hint = f"correct the row, or set {setting} to a column of numbers"
    if not isinstance(cell, str | int | float):
        raise ProjectError(CODE, f"a score is {describe_kind(cell)}, not a number", hint, location)
    try:
        if abs(number := float(TRUTH_VALUES.get(str(cell), cell))) <= LARGEST_SCORE:
            return number
    except (ValueError, OverflowError):
        pass
    message = f"score {printable(str(cell)[:40])!r} is not a finite number"
    raise ProjectError(CODE, message, hint, location)
