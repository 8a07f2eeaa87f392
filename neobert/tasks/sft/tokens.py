"""Tokens of a rendered conversation, and which of them are supervised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neobert.tasks.sft.rendered import Span, SupervisedText

Ids = NDArray[np.int64]
Encode = Callable[[str], tuple[Ids, Ids]]
"""Function of a text that returns the token ids [T], and the characters [T, 2] of each token."""


@dataclass(frozen=True, slots=True, eq=False)
class MarkedTokens:
    """Tokens of a conversation.

    Shapes: T tokens.

    Attributes:
        ids: int64 [T].
        marks: uint8 [T], 1 for supervised tokens.
        ends: number of tokens up to the end of each turn of the assistant, ascending.
        num_crossing: tokens with supervised and other text, which are not supervised.
    """

    ids: Ids
    marks: NDArray[np.uint8]
    ends: tuple[int, ...]
    num_crossing: int

    def turn_end_positions(self) -> Iterator[int]:
        """Yield the last token's position of each supervised turn, or of each supervised run of tokens."""
        positions = np.flatnonzero(self.marks)
        if self.ends:
            of_turns = np.searchsorted(self.ends, positions, side="right")
            last = positions[np.flatnonzero(np.diff(of_turns, append=-1))]
            yield from (int(position) for position in last if position < self.ends[-1])
        elif len(positions):
            yield from positions[np.flatnonzero(np.diff(positions, append=positions[-1] + 2) > 1)].tolist()


def tokenize(encode: Encode, conversation: SupervisedText) -> MarkedTokens:
    """Tokenize a conversation, and mark the tokens in a span as supervised.

    Whitespace beyond the end of a span is allowed: special tokens may include the whitespace after them.
    """
    ids, offsets = encode(conversation.text)
    inside = _character_mask(len(conversation.text), conversation.spans)
    ends = [_skip_whitespace(conversation.text, stop) for _, stop in conversation.spans]
    reached = _character_mask(
        len(conversation.text),
        [Span(start, end) for (start, _), end in zip(conversation.spans, ends, strict=True)],
    )
    starts, stops = offsets[:, 0], offsets[:, 1]
    last = np.maximum(stops - 1, starts)
    in_span, total = inside.astype(bool), np.concatenate([[0], np.cumsum(inside)])
    marks = in_span[starts] & reached.astype(bool)[last]
    overlaps = total[np.minimum(stops, len(conversation.text))] > total[starts]
    marks &= stops > starts
    turn_ends = np.searchsorted(starts, conversation.ends, side="left")
    return MarkedTokens(
        ids, marks.astype(np.uint8), tuple(sorted(set(turn_ends.tolist()))), int((overlaps & ~marks).sum())
    )


def _character_mask(length: int, spans: Sequence[Span]) -> NDArray[np.uint8]:
    """Return uint8 [length + 1], 1 for characters in a span."""
    mask = np.zeros(length + 1, np.uint8)
    for start, stop in spans:
        mask[start:stop] = 1
    return mask


def _skip_whitespace(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())
