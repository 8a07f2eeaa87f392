"""Source excerpt of a finding: its line, and a line of carets under the whole key or value."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator

from launcher.terminal.cells import shown_width
from neobert.printable import printable

MAX_WIDTH = 120
CUT = "..."
BLANKS = re.compile(r"\s+")
KEY = re.compile(r"""["']?[\w.<-]+["']?(?=\s*(?::(?:\s|$)|=))""")
QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""")
COMMENT = re.compile(r"(?<!\s)\s+#.*")
CLOSERS = {"[": "]", "{": "}"}


def excerpt(file: str, line: int, column: int, width: int) -> Iterator[tuple[str, str]]:
    """Yield (line number, source line), then ("", carets); nothing if the file cannot be read.

    Args:
        width: columns of the terminal; 0 without a terminal.
    """
    source = printable(linecache.getline(file, line).rstrip("\r\n"), keep="\t")
    if not source.strip():
        return
    number = str(line)
    room = min(MAX_WIDTH, (width or MAX_WIDTH) - len(number) - 4)
    if not 0 < column <= len(source):
        yield number, source[:room]
        return
    start = column - 1
    stop = max(start + 1, end_of(source, start))
    if stop > room:  # a long line begins later, so that the value is seen
        left_out = max(0, min(start, stop - room + len(CUT)))
        source = f"{CUT}{source[left_out:]}"
        start, stop = (place - left_out + len(CUT) for place in (start, stop))
    yield number, source[:room]
    yield "", _blanks(source[:start]) + "^" * shown_width(source[start : max(start + 1, min(stop, room))])


def end_of(source: str, start: int) -> int:
    """Return the index after the key, value or white space that starts at index `start` of a line."""
    for pattern in (BLANKS, KEY, QUOTED):
        if match := pattern.match(source, start):
            return match.end()
    opener = source[start : start + 1]
    if opener in CLOSERS:
        return _end_of_flow(source, start, opener)
    rest = COMMENT.sub("", source[start:]).rstrip()
    if _is_in_flow(source[:start]):
        rest = re.split(r"[,\]}]", rest, maxsplit=1)[0].rstrip()
    return start + max(1, len(rest))


def _end_of_flow(source: str, start: int, opener: str) -> int:
    """Return the index after a list or mapping; the end of the line if it continues on the next line."""
    depth = 0
    for place in range(start, len(source)):
        depth += (source[place] == opener) - (source[place] == CLOSERS[opener])
        if depth == 0:
            return place + 1
    return len(COMMENT.sub("", source).rstrip())


def _is_in_flow(before: str) -> bool:
    return any(before.count(opener) > before.count(closer) for opener, closer in CLOSERS.items())


def _blanks(text: str) -> str:
    return "".join("\t" if char == "\t" else " " * shown_width(char) for char in text)
