"""A conversation as text, with its supervised parts in brackets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcher.terminal.console import paint
from neobert.plurals import counted
from neobert.printable import printable

OPEN, CLOSE = "[[", "]]"
KEPT = "\t\u200c\u200d"
"""Tabs, and the joiners within emoji and words of some scripts."""
HEAD = f"first conversation; supervised text is in {OPEN} {CLOSE}:"

COUNTS = {
    "weightless": ("turn", "of weight 0: not supervised"),
    "empty": ("turn", "without content: not supervised"),
    "lost": ("supervised token", "lost from long conversations"),
    "crossing": ("token", "with supervised and other text, not supervised"),
    "without_target": ("conversation", "without a supervised token: left out"),
    "pieces_without_target": ("piece", "of a long conversation without a supervised token: left out"),
    "neutralized": ("conversation", "with control tokens as plain text"),
}
"""Counts of conversations: unit and meaning by name."""


def left_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each count of turns, tokens and conversations that are not learned as they are."""
    for name, (unit, meaning) in COUNTS.items():
        if counts.get(name):
            yield f"{counted(counts[name], unit)} {meaning}"


def conversation_text(pieces: Sequence[tuple[str, bool]]) -> str:
    """Return the lines of a conversation; supervised parts are in colour on a terminal too."""
    text = "".join(_marked(*piece) for piece in pieces)
    return "\n".join([HEAD, *(f"  {line}" for line in text.rstrip("\n").split("\n"))])


def _marked(text: str, is_supervised: bool) -> str:
    lines = (printable(line, KEPT) for line in text.split("\n"))
    if not is_supervised:
        return "\n".join(lines)
    return OPEN + "\n".join(paint(line, "green") if line else "" for line in lines) + CLOSE
