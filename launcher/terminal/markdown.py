"""Rendering of Markdown pages on a terminal: headings, code blocks and inline code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from launcher.terminal.console import has_colour, paint

FENCE = "```"
HEADING = re.compile(r"#+ +(.+)")
INLINE_CODE = re.compile(r"`([^`\n]+)`")
COMMENT = re.compile(r"(?:^|\s)#.*$")
INDENT = "    "


def render(page: str) -> str:
    """Return a page with bold headings, indented code blocks and colored inline code.

    Without colors, inline code keeps its backquotes.
    """
    return "\n".join(_lines(page))


def _lines(page: str) -> Iterator[str]:
    is_code = False
    for line in page.split("\n"):
        if line.startswith(FENCE):
            is_code = not is_code
        elif is_code:
            yield INDENT + COMMENT.sub(lambda match: paint(match[0], "dim"), line) if line else ""
        elif heading := HEADING.fullmatch(line):
            yield paint(heading[1], "bold")
        else:
            yield INLINE_CODE.sub(_inline, line)


def _inline(match: re.Match[str]) -> str:
    return paint(match[1], "cyan") if has_colour(sys.stdout) else match[0]
