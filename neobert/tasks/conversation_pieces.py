"""Pieces of conversations that are longer than a row. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import Literal, NamedTuple

LongDocuments = Literal["split", "truncate", "drop", "error"]
"""Values of dataset.long_documents."""
FEW_LOST, MANY_LOST = 0.01, 0.1
"""Shares of the supervised tokens, lost to the row length, above which SFT008 warns and fails."""


class TurnSize(NamedTuple):
    """Sizes of an answer of the assistant and of the messages before it; no answer ends the conversation."""

    prompt: int
    answer: int


class KeptPieces(NamedTuple):
    """Sizes of the pieces of a conversation that hold text of answers, and the size of that text."""

    sizes: list[int]
    answers: int


def piece_bounds(
    ends: Sequence[int], length: int, max_length: int, long_documents: LongDocuments
) -> list[tuple[int, int]]:
    """Return the bounds of the pieces to keep of a conversation.

    Args:
        ends: ends of the assistant's turns, ascending, in the unit of `length`.
        length: size of the conversation.
    """
    if length <= max_length:
        return [(0, length)]
    if long_documents == "split":
        return list(split_at_turns(ends, length, max_length))
    return [(0, max_length)] if long_documents == "truncate" else []


def split_at_turns(ends: Sequence[int], length: int, max_length: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces of at most `max_length` tokens that end with a turn of the assistant.

    A piece holds as many turns as fit. A turn that does not fit with the messages before it is left out.
    """
    start = 0
    for stop, following in zip_longest(ends, ends[1:]):
        if stop - start > max_length:
            start = stop
        elif following is None:
            yield start, length if length - start <= max_length else stop
        elif following - start > max_length:
            yield start, stop
            start = stop


def kept_pieces(turns: Sequence[TurnSize], max_length: int, long_documents: LongDocuments) -> KeptPieces:
    """Return what is kept of a conversation with turns of these sizes, in the unit of `max_length`."""
    stops = [*accumulate(size for turn in turns for size in turn)]
    answers = [(start, stop) for start, stop in zip(stops[::2], stops[1::2], strict=True) if stop > start]
    sizes, kept = list[int](), 0
    for first, last in piece_bounds([stop for _, stop in answers], stops[-1], max_length, long_documents):
        if of_piece := sum(max(0, min(stop, last) - max(start, first)) for start, stop in answers):
            sizes.append(last - first)
            kept += of_piece
    return KeptPieces(sizes, kept)
