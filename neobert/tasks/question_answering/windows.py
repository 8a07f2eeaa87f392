"""Windows of a context that is longer than a row, each with the question, and answers as spans of tokens.

Token positions start at 0 in each window. Shapes: T tokens of a context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neobert.data.tokenize.encoding import SegmentEncoder
from neobert.data.tokenize.offsets import Ids, tokenize_with_offsets

Span = tuple[int, int]


class Window(NamedTuple):
    """A question with a part of its context, framed as a pair.

    Attributes:
        ids: token ids.
        first: position of the first token of the context.
        start, stop: bounds of the part in the tokens of the context.
    """

    ids: list[int]
    first: int
    start: int
    stop: int

    @property
    def end(self) -> int:
        """Position after the last token of the context."""
        return self.first + self.stop - self.start

    def span_in_window(self, tokens: Span) -> Span | None:
        """Return a span of context tokens as positions in the window, or None unless both ends are in it."""
        first, last = tokens
        if first < self.start or last >= self.stop:
            return None
        return self.first + first - self.start, self.first + last - self.start


class ContextWindows(NamedTuple):
    """Windows of a context; empty if neither the context nor its question has a token.

    Attributes:
        offsets: character bounds of each token of the context, int64 [T, 2].
        length: tokens of question and context, framed.
        is_one_sided: question or context has no token.
    """

    offsets: Ids
    windows: tuple[Window, ...]
    length: int
    is_one_sided: bool

    def token_span(self, start: int, stop: int) -> Span | None:
        """Return the first and last token with a character of [start, stop), or None if no token has one."""
        covering = np.flatnonzero((self.offsets[:, 0] < stop) & (self.offsets[:, 1] > start))
        return (int(covering[0]), int(covering[-1])) if len(covering) else None

    def character_span(self, window: Window, span: Span, context: str) -> Span:
        """Return the character bounds of a span of a window, without whitespace at its ends."""
        first, last = (window.start + position - window.first for position in span)
        start, stop = int(self.offsets[first, 0]), int(self.offsets[last, 1])
        text = context[start:stop]
        return start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip())


@dataclass(frozen=True, slots=True)
class WindowEncoder:
    """Tokenization of questions and contexts.

    Attributes:
        pairs: encoder of pairs.
        shared: tokens that two windows share, at most half of a window.
    """

    pairs: SegmentEncoder
    shared: int

    def split(self, pairs: Iterable[Sequence[str]]) -> Iterator[ContextWindows]:
        """Yield the windows of each pair of a question and its context."""
        tokenized = tokenize_with_offsets(self.pairs, (text for pair in pairs for text in pair))
        for (question, _), (context, offsets) in zip(tokenized, tokenized, strict=True):
            num_tokens = len(question) + len(context)
            found = tuple(self._split_context(question.tolist(), context.tolist())) if num_tokens else ()
            is_one_sided = bool(num_tokens) and not (len(question) and len(context))
            yield ContextWindows(offsets, found, num_tokens + self.pairs.framing.size, is_one_sided)

    def _split_context(self, question: list[int], context: list[int]) -> Iterator[Window]:
        """Yield windows that cover the context; a question longer than half a row is cut."""
        framing = self.pairs.framing
        room = self.pairs.max_length - framing.size
        if len(question) + len(context) > room:
            question = question[: room // 2]
        room -= len(question)
        first = framing.second_start(question)
        start = 0
        while True:
            stop = min(start + room, len(context))
            yield Window(framing.frame(question, context[start:stop]), first, start, stop)
            if stop == len(context):
                return
            start = stop - min(self.shared, room // 2)
