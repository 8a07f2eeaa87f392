"""Tables with columns as wide as their content; the last is wrapped on a terminal, not in a pipe or log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.terminal import console
from launcher.terminal.fold import HANGING, align_left, display_width, fold
from neobert.printable import printable

NARROWEST = 28
"""Minimum width of a wrapped last column, in terminal columns."""

COMFORTABLE = 48
"""Width below which the text of the last column moves to lines of its own under the row."""


def format_columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Format rows of one-line cells as left-aligned columns, two blanks apart; empty without rows."""
    if not rows:
        return ""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(display_width(row[index]) for row in rows) for index in range(len(rows[0]))]
    terminal = console.terminal_width()
    return "\n".join(line for row in rows for line in _row_lines(row, widths, indent, terminal))


def _row_lines(row: Sequence[str], widths: Sequence[int], indent: str, terminal: int) -> Iterator[str]:
    cells = [align_left(cell, width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
    line = indent + "  ".join([*cells, row[-1]]).rstrip()
    if not terminal or display_width(line) <= terminal or len(row) == 1:
        yield line
        return
    ahead = [len(indent) + sum(widths[:place]) + 2 * place for place in range(len(row))]
    if terminal - ahead[-1] >= (COMFORTABLE if len(row) > 2 else NARROWEST):
        first, *more = _wrap_cell(row[-1], terminal - ahead[-1])
        yield indent + "  ".join([*cells, first])
        yield from (" " * ahead[-1] + text for text in more)
        return
    start = _indent_below(ahead, len(indent) + len(HANGING), terminal)
    yield from _row_lines(row[:-1], widths[:-1], indent, terminal)
    yield from (" " * start + text for text in _wrap_cell(row[-1], terminal - start))


def _indent_below(ahead: Sequence[int], least: int, terminal: int) -> int:
    """Return the indentation of a last column below its row: under the rightmost column with room for it."""
    for start in reversed(ahead[1:-1]):
        if terminal - start >= COMFORTABLE:
            return max(least, start)
    return max(least, ahead[-2]) if terminal - ahead[-2] >= NARROWEST else least


def _wrap_cell(text: str, width: int) -> list[str]:
    return fold(text, max(NARROWEST, width), hanging="").split("\n")
