"""Edits of a text at a line and column, and the text after a fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from neobert.config.document import LINE_BREAK


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a line. Lines and columns count from 1."""

    line: int
    column: int
    old: str
    new: str

    def fits(self, text: str) -> bool:
        """Return whether the line has the text to replace at that column, as a whole word."""
        start, stop = self.column - 1, self.column - 1 + len(self.old)
        return text[start:stop] == self.old and not re.match(r"[\w.-]", text[stop : stop + 1])


@dataclass(frozen=True, slots=True)
class Change:
    """Text after one fix, a short summary of the fix, and the new name of a renamed section, if any."""

    source: str
    summary: str
    section: str = ""


def apply(source: str, edit: Edit) -> str | None:
    """Return the source with one edit applied; None if it has other text at that position."""
    lines = with_line_ends(source)
    if edit.line > len(lines) or not edit.fits(lines[edit.line - 1]):
        return None
    text = lines[edit.line - 1]
    start = edit.column - 1
    lines[edit.line - 1] = text[:start] + edit.new + text[start + len(edit.old) :]
    return "".join(lines)


def edited(source: str, edit: Edit) -> Iterator[Change]:
    """Yield the source with one edit applied; nothing if it has other text at that position."""
    changed = apply(source, edit)
    if changed is not None:
        yield Change(changed, f"{edit.old} -> {edit.new}")


def quote_at(line: str, column: int) -> str:
    """Return the quote character at a column, counted from 1; empty for any other character."""
    return line[column - 1 : column] if line[column - 1 : column] in ("'", '"') else ""


def with_line_ends(source: str) -> list[str]:
    """Split a text into lines with their line endings."""
    ends = [match.end() for match in LINE_BREAK.finditer(source)]
    return [source[start:stop] for start, stop in zip([0, *ends], [*ends, len(source)], strict=True)]
