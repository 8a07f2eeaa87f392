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


def fold(text: str, columns: int, separator: str = " ", *, hanging: str = HANGING) -> str:
    """Break lines that are longer than `columns` between words; source excerpts are not broken.

    Args:
        columns: width of the terminal; 0 returns the text unchanged.
        separator: separator of words, or of groups of words that are kept together.
        hanging: indentation of the second and later lines.
    """
    if not columns:
        return text
    width = max(NARROWEST, columns)
    return "\n".join(
        part for line in text.split("\n") for part in _wrap_line(line, width, separator, hanging)
    )


def _wrap_line(line: str, width: int, separator: str, hanging: str) -> Iterator[str]:
    if display_width(line) <= width or EXCERPT.match(line):
        yield line
        return
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *words = line[len(indent) :].split(separator)
    begun = indent + first
    for word in words:
        if display_width(begun) + len(separator) + display_width(word) > width:
            yield begun.rstrip()
            begun = hanging + word
        elif begun == hanging:  # broken between two spaces
            begun += word
        else:
            begun += separator + word
    yield begun


def reflow(page: str, columns: int) -> str:
    """Rewrap the paragraphs, not the code blocks, of a Markdown page with a line longer than `columns`."""
    if not columns or max(map(len, page.split("\n"))) <= columns:
        return page
    width = max(NARROWEST, columns)
    parts = enumerate(CODE_BLOCK.split(page))
    return "".join(
        part if number % 2 else PARAGRAPH.sub(lambda match: _fill_paragraph(match[0], width), part)
        for number, part in parts
    )


def _fill_paragraph(paragraph: str, width: int) -> str:
    return textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes; escape sequences of colors take none."""
    plain = ANSI.sub("", text)
    return len(plain) if plain.isascii() else sum(map(_char_width, plain))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def align_left(text: str, width: int) -> str:
    """Pad a text on its right to `width` columns."""
    return text + " " * (width - display_width(text))


def align_right(text: str, width: int) -> str:
    """Pad a text on its left to `width` columns."""
    return " " * (width - display_width(text)) + text


def cut_end(text: str, width: int, mark: str = ELLIPSIS) -> str:
    """Shorten a text without colors to `width` columns, with a mark in place of its end."""
    if display_width(text) <= width:
        return text
    room = width - display_width(mark)
    return _fitting_start(text, room) + mark if room >= 0 else ""


def cut_start(text: str, width: int, mark: str = ELLIPSIS) -> str:
    """Shorten a text without colors to `width` columns, with a mark in place of its start."""
    if display_width(text) <= width:
        return text
    room = width - display_width(mark)
    return mark + _fitting_start(text[::-1], room)[::-1] if room >= 0 else ""


def _fitting_start(text: str, room: int) -> str:
    for place, char in enumerate(text):
        room -= _char_width(char)
        if room < 0:
            return text[:place]
    return text
