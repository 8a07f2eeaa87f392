"""Passages of long texts: an index holds the whole text in readable pieces that fit the model."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from neobert.encoding.texts import Texts

if TYPE_CHECKING:  # imports torch
    from neobert.encoding.tokens import TextTokenizer

WINDOW = 1 << 16
"""Number of characters tokenized at once: the offsets of a whole book take hundreds of bytes per token."""
LONGEST = 512
"""Default maximum length of a passage, in tokens: one embedding of a long text locates no match."""
SPARE = 1
"""Tokens left free in a passage: some tokenizers put a prefix before each text."""
BREAKS = (
    re.compile(r"[.!?][\"')\]]*\s+|[\u3002\uff01\uff1f]|\n\s*\n"),
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
"""Ends of a sentence or paragraph, else of a line, else of a word: a passage ends at one."""
TOKENS_PER_CHARACTER = 4
"""Maximum number of tokens of a character, reached by byte-level tokenizers."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text, or a piece of a text that is too long for one passage.

    Attributes:
        row: number of the text, from 0.
        file: name of its file; empty if all texts are from one file.
    """

    row: int
    file: str
    text: str


class Passages:
    """Texts, with long ones cut into passages that are the whole text when joined."""

    def __init__(self, texts: Texts, tokenizer: TextTokenizer, prompt: str, length: int | None) -> None:
        """Set the passage `length` in tokens; None selects `LONGEST`, or the model's limit if it is lower."""
        self._texts, self._encoder = texts, tokenizer.texts
        (ids,) = self._encoder.token_ids([prompt])
        length = length or min(tokenizer.max_length, LONGEST)
        self._room = max(1, length - self._encoder.framing.size - len(ids) - SPARE)

    def __iter__(self) -> Iterator[str]:
        return (passage.text for passage in self.passages())

    def passages(self) -> Iterator[Passage]:
        """Yield the passages of all texts, in their order."""
        for row, (file, text) in enumerate(self._texts.texts_with_files()):
            yield from (Passage(row, file, piece) for piece in self._split_text(text))

    def identity(self) -> Any:
        """Return the description of the content of the texts, as `Texts.identity` does."""
        return self._texts.identity()

    def _split_text(self, text: str) -> Iterator[str]:
        start = 0
        while TOKENS_PER_CHARACTER * (len(text) - start) > self._room:
            window = text[start : start + WINDOW]
            is_last = start + len(window) == len(text)
            ends = list(self._passage_ends(window))
            if not is_last and not ends:
                ends = [len(window)]
            for begin, end in pairwise([0, *ends]):
                yield window[begin:end]
            start += ends[-1] if ends else 0
            if is_last:
                break
        if start < len(text) or not text:
            yield text[start:]

    def _passage_ends(self, window: str) -> Iterator[int]:
        """Yield the end offset of each passage, except the last one, whose end may be in the next window."""
        (encoding,) = self._encoder.encode_texts([window], has_offsets=True)
        starts = [start for start, _ in encoding.offsets]
        begin, first = 0, 0
        while len(starts) - first > self._room:
            begin = _last_break(window, begin, starts[first + self._room])
            first = bisect_left(starts, begin, lo=first)
            yield begin


def _last_break(text: str, begin: int, limit: int) -> int:
    """Return the end of the last break in the second half of [begin, limit]; the limit if there is none.

    The first pattern of `BREAKS` that matches is used.
    """
    for pattern in BREAKS:
        if ends := [found.end() for found in pattern.finditer(text, (begin + limit) // 2, limit)]:
            return ends[-1]
    return max(limit, begin + 1)
