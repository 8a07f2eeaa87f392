"""Folding of text at the width of the terminal, and the width of text on it."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterator

EXCERPT = re.compile(r"\s+\d* \| ")
CODE_BLOCK = re.compile(r"(```.*?```)", re.DOTALL)
PARAGRAPH = re.compile(r"^(?!#).+(?:\n(?!#).+)*", re.MULTILINE)
NARROWEST = 20
HANGING = "    "

ANSI = re.compile(r"\x1b\[[\d;]*m")
ELLIPSIS = "…"


def fold(text: str, terminal: int, between: str = " ", *, hanging: str = HANGING) -> str:
    """Break lines that are longer than the terminal between words; source excerpts are not broken.

    Args:
        terminal: width in columns; 0 returns the text unchanged.
        between: separator of words, or of groups of words that are kept together.
        hanging: indentation of the second and later lines.
    """
    if not terminal:
        return text
    width = max(NARROWEST, terminal)
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width, between, hanging))


def _parts(line: str, width: int, between: str, hanging: str) -> Iterator[str]:
    if shown_width(line) <= width or EXCERPT.match(line):
        yield line
        return
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *words = line[len(indent) :].split(between)
    begun = indent + first
    for word in words:
        if shown_width(begun) + len(between) + shown_width(word) > width:
            yield begun.rstrip()
            begun = hanging + word
        else:
            begun += between + word
    yield begun


def reflow(page: str, terminal: int) -> str:
    """Rewrap the paragraphs of a page that has a line too long for the terminal, but not its code blocks."""
    if not terminal or max(map(len, page.split("\n"))) <= terminal:
        return page
    width = max(NARROWEST, terminal)
    parts = enumerate(CODE_BLOCK.split(page))
    return "".join(
        part if number % 2 else PARAGRAPH.sub(lambda match: _filled(match[0], width), part)
        for number, part in parts
    )


def _filled(paragraph: str, width: int) -> str:
    return textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)


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
