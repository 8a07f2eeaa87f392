"""Final cleaning of text for a terminal or a CI log."""

from __future__ import annotations

import re

from neobert.printable import printable

STYLE = re.compile(r"(\x1b\[\d+(?:;\d+)*m)")
# GitHub runs `::name` at the start of a line, after blanks too, and the older `##[name]` anywhere in one.
AT_START = re.compile(r"^([ \t]*):(?=:)")
ANYWHERE = "##["


def safe_text(text: str, *, has_colour: bool) -> str:
    """Return text that only prints: its line breaks and tabs stay, its colours where they are wanted.

    It cannot tell our line breaks from those within a value: values are cleaned where a line is built.
    """
    return "\n".join(_safe_line(line, has_colour=has_colour) for line in text.split("\n"))


def _safe_line(line: str, *, has_colour: bool) -> str:
    # A text may have been painted for the other stream, which is a terminal.
    parts = STYLE.split(line) if has_colour else [STYLE.sub("", line)]
    shown = "".join(part if place % 2 else printable(part, keep="\t") for place, part in enumerate(parts))
    return AT_START.sub(r"\1: ", shown).replace(ANYWHERE, "## [")
