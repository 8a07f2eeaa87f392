"""Local text and conversations as rows: formats, documents, files that are not read, what was cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.terminal.console import paint
from neobert.plurals import counted
from neobert.printable import printable

Row = tuple[str, str, str]
MAX_KINDS = 5
REASON = "files are selected by suffix, split and column; see docs/own-data.md"

OPEN, CLOSE = "[[", "]]"
KEPT = "\t\u200c\u200d"
"""Tab, zero-width non-joiner and joiner: emoji and words of some scripts need them."""
HEADING = f"first conversation; supervised text is in {OPEN} {CLOSE}:"

COUNTS = {
    "weightless": ("turn", "of a prompt or of weight 0: not supervised"),
    "empty": ("turn", "without content: not supervised"),
    "unprompted": ("first message", "of the assistant, for which the template has no prompt: not supervised"),
    "lost": ("supervised token", "lost from long conversations"),
    "crossing": ("token", "with both supervised and other text: not supervised"),
    "without_target": ("conversation", "without a supervised token: left out"),
    "pieces_without_target": ("piece", "of a long conversation without a supervised token: left out"),
    "neutralized": ("conversation", "with control tokens as plain text"),
}
"""Counts of conversations: unit and meaning by name."""


def files_rows(texts: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield a row per local text, from `TextFacts` as JSON values."""
    for text in texts:
        yield "text", files_text(text), REASON


def files_text(text: Mapping[str, Any]) -> str:
    """Return the files of a text by format, its documents, and the files that are not read.

    Returns the error of a text without files to read.
    """
    if text["message"] and not text["formats"]:
        return f"{text['source']}: {text['message']}"
    formats = ", ".join(f"{count:,} x {suffix}" for suffix, count in text["formats"].items())
    parts = [f"{text['source']}: {formats or 'a saved dataset'}"]
    if text["num_eval_files"]:
        parts.append(f"{counted(text['num_eval_files'], 'file')} for evaluation")
    if text["documents"] is not None:
        parts.append(counted(text["documents"], "document"))
    left = "" if not text["left_out"] else f"; not read: {left_out_text(text['left_out'])}"
    return ", ".join(parts) + left


def left_out_text(left_out: Sequence[Mapping[str, Any]]) -> str:
    """Return the most frequent kinds of unread files with their reasons, and the number of other files."""
    shown = [
        f"{each['num_files']:,} x {each['kind']}" + f" ({each['reason']})" * bool(each["reason"])
        for each in left_out[:MAX_KINDS]
    ]
    more = sum(each["num_files"] for each in left_out[MAX_KINDS:])
    return ", ".join([*shown, *([f"{more:,} more"] if more else [])])


def left_out_lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each kind of turns, tokens and conversations that are left out or changed."""
    for name, (unit, meaning) in COUNTS.items():
        if counts.get(name):
            yield f"{counted(counts[name], unit)} {meaning}"


def conversation_text(pieces: Sequence[tuple[str, bool]]) -> str:
    """Return a heading and the lines of a conversation, with supervised parts in brackets and in color."""
    text = "".join(_mark_supervised(*piece) for piece in pieces)
    return "\n".join([HEADING, *(f"  {line}" for line in text.rstrip("\n").split("\n"))])


def _mark_supervised(text: str, is_supervised: bool) -> str:
    lines = (printable(line, KEPT) for line in text.split("\n"))
    if not is_supervised:
        return "\n".join(lines)
    return OPEN + "\n".join(paint(line, "green") if line else "" for line in lines) + CLOSE
