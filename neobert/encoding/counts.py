"""Counts of tokenized texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class TextCounts:
    """Counts of tokenized texts and their tokens, special tokens included.

    Attributes:
        truncated: texts that were longer than the limit.
        tokens_lost: tokens that truncation removed.
        empty: texts without tokens, embedded as the special tokens alone.
    """

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    tokens_lost: int = 0
    empty: int = 0

    def add(self, other: TextCounts) -> None:
        """Add the counts of other texts."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
