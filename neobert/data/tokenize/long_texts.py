"""Pieces of a long document, cut at whitespace.

The tokenizers library takes about 150 bytes of memory per character while it tokenizes a text, so a long
document is tokenized in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

PIECE_CHARACTERS = 1 << 16
MAX_PIECE_CHARACTERS = 1 << 20
_SEARCHED_CHARACTERS = 4096
_CONTEXT_CHARACTERS = 256
_MAX_CANDIDATES = 8
_GAP = re.compile(r"(?<=\S)\s(?=\S)")
MayCut = Callable[[str, str], bool]


def cut_into_pieces(text: str, may_cut: MayCut) -> Iterator[str]:
    """Yield consecutive pieces of a text, most of at most `PIECE_CHARACTERS` characters.

    `may_cut` gets up to 256 characters before and after a possible cut, and returns whether to cut there. If
    `may_cut` rejects all cuts, a piece ends after `MAX_PIECE_CHARACTERS`.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        stop = _piece_end(text, start, may_cut)
        yield text[start:stop]
        start = stop
    if start < len(text) or not text:
        yield text[start:]


def _piece_end(text: str, start: int, may_cut: MayCut) -> int:
    length = PIECE_CHARACTERS
    while length <= MAX_PIECE_CHARACTERS:
        stop = start + length
        if stop >= len(text):
            return len(text)
        for offset in (*_whitespace_offsets_before(text, start, stop), stop):
            before = text[max(start, offset - _CONTEXT_CHARACTERS) : offset]
            if may_cut(before, text[offset : offset + _CONTEXT_CHARACTERS]):
                return offset
        length *= 4
    return start + MAX_PIECE_CHARACTERS


def _whitespace_offsets_before(text: str, start: int, stop: int) -> list[int]:
    """Return the offsets of the last single whitespace characters before `stop`, in decreasing order."""
    searched = _GAP.finditer(text, max(start + 1, stop - _SEARCHED_CHARACTERS), stop)
    return [gap.start() for gap in searched][: -_MAX_CANDIDATES - 1 : -1]
