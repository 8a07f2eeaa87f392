"""Conversations longer than a row, in a new run file: which of their text each setting keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neobert.plurals import percent
from neobert.tasks.conversation_pieces import FEW_LOST, LongDocuments, TurnSize, kept_pieces

WAYS: tuple[LongDocuments, ...] = ("drop", "split", "truncate")


class KeptText(NamedTuple):
    """Text of the conversations that a value of dataset.long_documents keeps, by an estimate.

    Attributes:
        sizes: bytes of each conversation or piece.
        lost: share of the tokens of all answers that are lost.
    """

    long_documents: LongDocuments
    sizes: list[int]
    lost: float

    @property
    def comment(self) -> str:
        """Comment on dataset.long_documents in the run file."""
        if self.long_documents == "drop":
            return "or `split`: after a turn"
        where = "after a turn" if self.long_documents == "split" else "answers longer than a row are cut"
        return f"{where}; by an estimate, {percent(self.lost)} of the answers' tokens are lost"


def keep_text(conversations: Sequence[Sequence[TurnSize]], length: int, bytes_per_token: float) -> KeptText:
    """Choose how conversations with sizes in bytes are shortened to rows of `length` tokens.

    They are dropped, else split, while few tokens of answers are lost, else as loses fewest.
    """
    kept = list[KeptText]()
    for long_documents in WAYS:
        kept.append(_estimate_kept(conversations, length, bytes_per_token, long_documents))
        if kept[-1].lost <= FEW_LOST:
            return kept[-1]
    return min(kept, key=lambda each: each.lost)


def _estimate_kept(
    conversations: Sequence[Sequence[TurnSize]],
    length: int,
    bytes_per_token: float,
    long_documents: LongDocuments,
) -> KeptText:
    """Estimate what one value of dataset.long_documents keeps of conversations with sizes in bytes."""
    max_bytes = int(length * bytes_per_token)
    pieces = [kept_pieces(turns, max_bytes, long_documents) for turns in conversations]
    answers = sum(turn.answer for turns in conversations for turn in turns)
    lost = 1 - sum(each.answers for each in pieces) / max(1, answers)
    return KeptText(long_documents, [size for each in pieces for size in each.sizes], lost)
