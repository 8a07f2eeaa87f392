"""Width of text on a terminal: East Asian characters and emoji take two columns, combining marks none."""

from __future__ import annotations

import re
import unicodedata

ANSI = re.compile(r"\x1b\[[\d;]*m")
ELLIPSIS = "…"


def shown_width(text: str) -> int:
    """Return the number of columns that a text takes, without its colors."""
    plain = ANSI.sub("", text)
    return len(plain) if plain.isascii() else sum(map(_columns, plain))


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def left_aligned(text: str, width: int) -> str:
    """Pad a text on its right to `width` columns."""
    return text + " " * (width - shown_width(text))


def right_aligned(text: str, width: int) -> str:
    """Pad a text on its left to `width` columns."""
    return " " * (width - shown_width(text)) + text


def cut_end(text: str, width: int, mark: str = ELLIPSIS) -> str:
    """Shorten a text without colors to `width` columns, with a mark in place of its end."""
    if shown_width(text) <= width:
        return text
    room = width - shown_width(mark)
    return _beginning(text, room) + mark if room >= 0 else ""


def cut_start(text: str, width: int, mark: str = ELLIPSIS) -> str:
    """Shorten a text without colors to `width` columns, with a mark in place of its start."""
    if shown_width(text) <= width:
        return text
    room = width - shown_width(mark)
    return mark + _beginning(text[::-1], room)[::-1] if room >= 0 else ""


def _beginning(text: str, room: int) -> str:
    for place, char in enumerate(text):
        room -= _columns(char)
        if room < 0:
            return text[:place]
    return text
