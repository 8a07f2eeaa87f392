"""Config errors, formatted like compiler diagnostics: all at once, each with its source line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neobert.config.nodes import COMMAND_LINE
from neobert.errors import EXIT_CHECK_FAILED, EXIT_USAGE, ProjectError
from neobert.printable import printable

MAX_SHOWN = 20
SHOWN_WIDTH = 96


class ConfigIssue(NamedTuple):
    """Config error. Lines and columns count from 1 (0: unknown); the column marks the value or key."""

    code: str
    path: str
    message: str
    hint: str
    file: str
    line: int
    column: int
    source_line: str

    @property
    def place(self) -> str:
        """Return `file:line:column`, without unknown parts."""
        parts = [self.file] + [str(number) for number in (self.line, self.column) if number]
        return ":".join(parts)

    def __str__(self) -> str:
        head = f"{self.place}: " if self.file else ""
        lines = [printable(f"{head}{self.code} {self.message}")]
        if self.source_line:
            lines += _excerpt_lines(self.source_line, self.line, self.column)
        if self.hint:
            lines.append(printable(f"  = hint: {self.hint}"))
        return "\n".join(lines)


class ConfigError(ProjectError):
    """Exception with all errors of a configuration.

    Exit code 2 if a file cannot be read as a config or an override is wrong, otherwise 1.
    """

    def __init__(self, issues: Sequence[ConfigIssue]) -> None:
        assert issues
        self.issues = tuple(dict.fromkeys(issues))
        first = self.issues[0]
        rest = len(self.issues) - 1
        super().__init__(
            code=first.code,
            message=first.message + (f" (and {rest} more)" if rest else ""),
            hint=first.hint,
            place=first.place,
            exit_code=EXIT_USAGE if any(map(_is_usage_error, self.issues)) else EXIT_CHECK_FAILED,
        )

    def __str__(self) -> str:
        shown = [str(issue) for issue in self.issues[:MAX_SHOWN]]
        rest = len(self.issues) - MAX_SHOWN
        return "\n\n".join([*shown, f"... and {rest} more"] if rest > 0 else shown)


def _is_usage_error(issue: ConfigIssue) -> bool:
    return issue.code == "CFG011" or issue.file == COMMAND_LINE


def _excerpt_lines(source_line: str, line: int, column: int) -> list[str]:
    """Return the source line, shortened around the column, and a line with a caret below the column."""
    start = max(0, column - SHOWN_WIDTH // 2) if len(source_line) > SHOWN_WIDTH else 0
    window = source_line[start : start + SHOWN_WIDTH]
    text = printable(window, keep="\t")
    number = str(line or "")
    shown = [f"  {number} | {text}"]
    if column:
        shown.append(f"  {' ' * len(number)} | {_caret_padding(text[: column - 1 - start])}^")
    return shown


def _caret_padding(text: str) -> str:
    """Return spaces with the display width of the text in a terminal."""
    import unicodedata

    return "".join(
        "\t" if char == "\t" else "  " if unicodedata.east_asian_width(char) in "WF" else " " for char in text
    )
