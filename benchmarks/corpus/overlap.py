"""Share of the 13-grams of texts that a training text has too."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

GRAM = 13


def shared_grams(texts: Iterable[Sequence[Hashable]], training: Iterable[Sequence[Hashable]]) -> float:
    """Return the share of the distinct 13-grams of some texts, lists of tokens, that training has too."""
    wanted = {gram for each in texts for gram in grams(each)}
    there = {gram for each in training for gram in grams(each) if gram in wanted}
    return len(there) / max(1, len(wanted))


def grams(items: Sequence[Hashable]) -> Iterator[tuple[Hashable, ...]]:
    """Yield all runs of 13 items."""
    sequence = tuple(items)
    return (sequence[first : first + GRAM] for first in range(len(sequence) - GRAM + 1))
