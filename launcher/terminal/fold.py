"""Line breaks between words at the width of a terminal, never in a pipe or a log."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from launcher.terminal.cells import shown_width

EXCERPT = re.compile(r"\s+\d* \| ")
CODE_BLOCK = re.compile(r"(```.*?```)", re.DOTALL)
PARAGRAPH = re.compile(r"^(?!#).+(?:\n(?!#).+)*", re.MULTILINE)
NARROWEST = 20
HANGING = "    "


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
