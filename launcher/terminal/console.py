"""Standard output and standard error, which may be closed, full, or not a terminal."""

from __future__ import annotations

import codecs
import errno
import os
import re
import shutil
import sys
from io import TextIOWrapper
from typing import TextIO

from launcher.terminal.fold import ELLIPSIS, cut_start, fold
from neobert.errors import EXIT_CHECK_FAILED, ProjectError
from neobert.printable import printable

ERASE_LINE = "\x1b[K"
"""Escape sequence that erases to the end of the line, such as the status line."""
OUTPUT_FAILED = "output-failed"
ANSI = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
STYLE = re.compile(r"(\x1b\[\d+(?:;\d+)*m)")
# GitHub runs `::name` at the start of a line, after blanks too, and the older `##[name]` anywhere in one.
AT_START = re.compile(r"^([ \t]*):(?=:)")
ANYWHERE = "##["


def write(text: str) -> None:
    """Write text to standard output, without control characters or CI commands.

    If the reader closed the pipe (`| head`), the rest is dropped and the exit code is unchanged.

    Raises:
        ProjectError: the output could not be written.
    """
    write_commands(safe_text(text, has_colour=has_colour(sys.stdout)))


def write_part(text: str) -> None:
    """Write text without a line break to standard output. Raises ProjectError if that fails."""
    write_commands(printable(text, keep="\n\t"), end="")


def write_commands(text: str, end: str = "\n") -> None:
    """Write text to standard output unchanged, such as workflow commands, whose values are escaped.

    Raises ProjectError if the output cannot be written.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        redirect_to_null(sys.stdout)
    except OSError as error:
        raise stdout_error(error) from error


def stdout_error(error: OSError) -> ProjectError:
    """Return the ProjectError for a failed write to standard output, and drop further writes to it."""
    redirect_to_null(sys.stdout)
    return ProjectError(
        code=OUTPUT_FAILED,
        message=f"standard output cannot be written: {os.strerror(error.errno or errno.EIO)}",
        hint="free disk space, or redirect the output to another file",
        exit_code=EXIT_CHECK_FAILED,
    )


def log(text: str) -> None:
    """Write a message to standard error, folded to the terminal; a failed write is ignored."""
    shown = safe_text(fold(text, terminal_width(sys.stderr)), has_colour=has_colour(sys.stderr))
    try:
        print(f"{ERASE_LINE if is_terminal(sys.stderr) else ''}{shown}", file=sys.stderr, flush=True)
    except OSError:
        redirect_to_null(sys.stderr)


def open_closed_streams() -> None:
    """Open the null device for closed streams (`>&-`), before another file gets their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            if null != number:
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def escape_unencodable_text() -> None:
    """Make stdout and stderr escape characters that their encoding lacks, such as bytes of file names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def redirect_to_null(stream: TextIO) -> None:
    """Redirect a failed stream to the null device, so that the interpreter's flush at exit succeeds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def terminal_width(stream: TextIO | None = None) -> int:
    """Return the terminal width of standard output or of another stream, in columns.

    Returns 0 for a pipe or a file, whose lines are not limited.
    """
    return shutil.get_terminal_size().columns if is_terminal(stream or sys.stdout) else 0


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that supports live views and colors (TERM is not dumb)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def supports_block_characters(stream: TextIO) -> bool:
    """Return whether a stream's encoding is a UTF, which has block characters and the ellipsis."""
    try:
        return codecs.lookup(stream.encoding or "ascii").name.startswith("utf")
    except LookupError:
        return False


def cut_name(name: str, width: int) -> str:
    """Shorten a run's name to `width` columns at its start: names of runs in a sweep differ at the end."""
    return cut_start(name, width, ELLIPSIS if supports_block_characters(sys.stdout) else "~")


def has_colour(stream: TextIO) -> bool:
    """Return whether to color this stream: as NO_COLOR or FORCE_COLOR sets, else only on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def paint(text: str, *styles: str, on: TextIO | None = None) -> str:
    """Color a text, if stream `on` (standard output by default) takes colors."""
    if not has_colour(on or sys.stdout):
        return text
    codes = ";".join(ANSI[style] for style in styles)
    return f"\x1b[{codes}m{text}\x1b[0m"


def describe_error(error: ProjectError) -> str:
    """Format an error for standard error, in color if that stream takes colors."""
    return f"{paint('error', 'red', 'bold', on=sys.stderr)}: {plain_description(error)}"


def plain_description(error: ProjectError) -> str:
    """Format an error without colors: location, message and code, then the hint on its own line."""
    hint = f"\n  = hint: {printable(error.hint)}" if error.hint else ""
    return printable(f"{error.located_message} [{error.code}]") + hint


def safe_text(text: str, *, has_colour: bool) -> str:
    """Return text without control characters, except line breaks, tabs and, with `has_colour`, colors.

    Line breaks inside values cannot be recognized here: values must be cleaned before a line is built.
    """
    return "\n".join(_safe_line(line, has_colour=has_colour) for line in text.split("\n"))


def _safe_line(line: str, *, has_colour: bool) -> str:
    # A text may have been painted for the other stream, which is a terminal.
    parts = STYLE.split(line) if has_colour else [STYLE.sub("", line)]
    shown = "".join(part if place % 2 else printable(part, keep="\t") for place, part in enumerate(parts))
    return AT_START.sub(r"\1: ", shown).replace(ANYWHERE, "## [")
