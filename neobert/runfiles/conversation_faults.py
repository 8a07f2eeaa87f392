"""Counts of faults in conversations and their supervised text, with the first example of each kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Fault(StrEnum):
    """Reason why a turn, or a whole conversation, is not supervised as it should be."""

    NO_TURN = "no-turn"
    FAILED = "failed"
    REWRITTEN = "rewritten"
    LOST = "lost"
    OUTSIDE = "outside"
    NO_PROMPT = "no-prompt"
    REPR = "repr"
    CLOCK = "clock"
    CONTROL = "control"
    NO_STOP = "no-stop"
    CUT = "cut"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Number of documents with a fault.

    Attributes:
        first: number of the first such document, from 1.
        detail: what is wrong with it.
    """

    count: int
    first: int
    detail: str


def merge_occurrences(
    mine: dict[str, Occurrence], theirs: dict[str, Occurrence], num_documents: int
) -> dict[str, Occurrence]:
    """Merge the faults of two consecutive batches; the first batch has `num_documents` documents."""
    both = dict(mine)
    for kind, other in theirs.items():
        first = mine.get(kind)
        both[kind] = (
            replace(other, first=other.first + num_documents)
            if first is None
            else replace(first, count=first.count + other.count)
        )
    return dict(sorted(both.items()))
