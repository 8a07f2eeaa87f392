"""A conversation as text, with its supervised parts in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.terminal.console import paint
from neobert.printable import printable

OPEN, CLOSE = "[[", "]]"
HEAD = f"first conversation; supervised text is in {OPEN} {CLOSE}:"


def conversation_text(pieces: Sequence[tuple[str, bool]], indent: str = "  ") -> str:
    """Return the lines of a conversation; supervised parts are in colour on a terminal too."""
    text = "".join(_marked(*piece) for piece in pieces)
    return "\n".join([HEAD, *(f"{indent}{line}" for line in text.rstrip("\n").split("\n"))])


def _marked(text: str, is_supervised: bool) -> str:
    lines = map(printable, text.split("\n"))
    if not is_supervised:
        return "\n".join(lines)
    return OPEN + "\n".join(paint(line, "green") if line else "" for line in lines) + CLOSE
