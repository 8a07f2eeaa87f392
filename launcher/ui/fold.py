"""Sentences broken between words where a terminal ends, never in a pipe or a log."""

from __future__ import annotations

import re
from collections.abc import Iterator

ANSI = re.compile(r"\x1b\[[\d;]*m")
EXCERPT = re.compile(r"\s+\d* \| ")
NARROWEST = 20
HANGING = "    "


def fold(text: str, terminal: int, between: str = " ") -> str:
    """Break the lines that are longer than the terminal; excerpts of files, and paths, stay in one piece.

    Args:
        terminal: columns; 0 for none, where lines may be of any length.
        between: what stands between words, or between groups of them that belong together.
    """
    if not terminal:
        return text
    width = max(NARROWEST, terminal)
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width, between))


def _parts(line: str, width: int, between: str) -> Iterator[str]:
    if shown_length(line) <= width or EXCERPT.match(line):
        yield line
        return
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *words = line[len(indent) :].split(between)
    begun = indent + first
    for word in words:
        if shown_length(begun) + len(between) + shown_length(word) > width:
            yield begun.rstrip()
            begun = HANGING + word
        else:
            begun += between + word
    yield begun


def shown_length(text: str) -> int:
    """Characters that take a place on a terminal."""
    return len(ANSI.sub("", text))
