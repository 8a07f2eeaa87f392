"""Findings as text: code and title, location, source excerpt, hint."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TextIO

from launcher.report.report import Report
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import display_width, fold
from neobert.config import COMMAND_LINE
from neobert.plurals import counted
from neobert.printable import printable
from validators.finding import CheckResult, Finding, Severity, Status

COLOUR = {Severity.FAIL: "red", Severity.WARN: "yellow"}
VERDICT_COLOUR = {"pass": "green", "fail": "red", "unknown": "yellow"}
FIXABLE = "[*]"

MAX_WIDTH = 120
CUT = "..."
BLANKS = re.compile(r"\s+")
KEY = re.compile(r"""["']?[\w.<-]+["']?(?=\s*(?::(?:\s|$)|=))""")
QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""")
COMMENT = re.compile(r"(?<!\s)\s+#.*")
CLOSERS = {"[": "]", "{": "}"}


def render(report: Report, fixable: Collection[Finding] = (), *, quiet: bool = False) -> str:
    """Format all findings, then the counts.

    Args:
        fixable: findings that `lint --fix` would fix.
        quiet: omit the counts.
    """
    parts = []
    previous = None
    for finding in report.findings:
        place = finding.file, finding.line, finding.column
        text = finding_text(finding, is_fixable=finding in fixable, has_source=place != previous)
        parts.append(text)
        previous = place
    unknown = (check for check in report.checks if check.status is Status.UNKNOWN and check.required)
    parts += map(_unknown_text, unknown)
    return "\n\n".join(parts if quiet else [*parts, summary(report, len(fixable))])


def _unknown_text(check: CheckResult) -> str:
    label = paint(f"{check.status} {check.id}", VERDICT_COLOUR["unknown"], "bold")
    return fold(f"{label} {check.name}: {printable(check.message)}", console.terminal_width())


def summary(report: Report, num_fixable: int = 0) -> str:
    """Return the verdict, the number of findings and checks, and the number that `lint --fix` would fix."""
    standing = [finding for finding in report.findings if not finding.waived]
    fails = sum(finding.severity is Severity.FAIL for finding in standing)
    waived = len(report.findings) - len(standing)
    counts = [f"{fails} fail", f"{len(standing) - fails} warn"] + ([f"{waived} waived"] if waived else [])
    verdict = paint(report.verdict, VERDICT_COLOUR[report.verdict], "bold")
    lines = [f"{verdict}: {', '.join([*counts, *_check_counts(report)])}"]
    if num_fixable:
        lines.append(f"{paint(FIXABLE, 'cyan')} {num_fixable} fixable with --fix")
    return fold("\n".join(lines), console.terminal_width())


def _check_counts(report: Report) -> list[str]:
    if not report.checks:
        return []
    ended = Counter(check.status for check in report.checks)
    words = {
        Status.PASS: f"{counted(ended[Status.PASS], 'check')} passed",
        Status.SKIP: f"{ended[Status.SKIP]} skipped",
        Status.UNKNOWN: f"{ended[Status.UNKNOWN]} unknown",
    }
    return [word for status, word in words.items() if ended[status]]


def finding_text(
    finding: Finding, *, is_fixable: bool = False, has_source: bool = True, on: TextIO | None = None
) -> str:
    """Format a finding as text.

    Args:
        has_source: show the line of the file, if it can be read.
        on: output stream, which determines colors and width; None for standard output.
    """
    lines = [
        _finding_head(finding, on, is_fixable=is_fixable),
        *_location_lines(finding, on, has_source=has_source),
        *_key_and_hint_lines(finding, on),
    ]
    return fold("\n".join(lines), console.terminal_width(on))


def _finding_head(finding: Finding, on: TextIO | None, *, is_fixable: bool) -> str:
    label = paint(f"{finding.severity} {finding.code}", COLOUR[finding.severity], "bold", on=on)
    name = f" {finding.name}" if finding.name else ""
    marks = (f" {paint(FIXABLE, 'cyan', on=on)}" if is_fixable else "") + (
        " (waived)" if finding.waived else ""
    )
    return f"{label}{printable(name)}{marks}: {paint(printable(finding.message), 'bold', on=on)}"


def _location_lines(finding: Finding, on: TextIO | None, *, has_source: bool) -> Iterator[str]:
    """Yield the location and source line of a finding, then of the inherited value, if any."""
    colour = COLOUR[finding.severity]
    if finding.file:
        yield from _excerpt_lines(
            "-->", finding.file, finding.line, finding.column, colour, on, has_source=has_source
        )
    if finding.inherited_file:
        inherited = finding.inherited_file, finding.inherited_line, finding.inherited_column
        yield from _excerpt_lines("set in", *inherited, colour, on, has_source=True)


def _excerpt_lines(
    label: str, file: str, line: int, column: int, colour: str, on: TextIO | None, *, has_source: bool
) -> Iterator[str]:
    """Yield a location, then the source line with carets under the whole key or value."""
    place = ":".join(str(part) for part in (file, line, column) if part)
    lines: list[tuple[str, str]] = []
    if has_source and line and file != COMMAND_LINE:
        lines = list(excerpt(file, line, column, console.terminal_width(on)))
    margin = len(lines[0][0]) if lines else 1
    yield f"{' ' * margin} {paint(label, 'dim', on=on)} {printable(place)}"
    for number, text in lines:
        shown = text if number else paint(text, colour, on=on)
        yield f" {paint(f'{number:>{margin}} |', 'dim', on=on)} {shown}"


def _key_and_hint_lines(finding: Finding, on: TextIO | None) -> Iterator[str]:
    """Yield the full key, unless message or hint contain it, and the hint."""
    if "." in finding.path and finding.path not in finding.message + finding.hint:
        yield f"  {paint('= key:', 'dim', on=on)} {printable(finding.path)}"
    if finding.hint:
        yield f"  {paint('= hint:', 'cyan', on=on)} {printable(finding.hint)}"


def excerpt(file: str, line: int, column: int, width: int) -> Iterator[tuple[str, str]]:
    """Yield (line number, source line), then ("", carets); nothing if the line is blank or cannot be read.

    Args:
        width: columns of the terminal; 0 for `MAX_WIDTH`.
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
    stop = max(start + 1, token_end(source, start))
    if stop > room:  # a long line begins later, so that the value is seen
        left_out = max(0, min(start, stop - room + len(CUT)))
        source = f"{CUT}{source[left_out:]}"
        start, stop = (place - left_out + len(CUT) for place in (start, stop))
    yield number, source[:room]
    yield (
        "",
        _blanks_as_wide_as(source[:start])
        + "^" * display_width(source[start : max(start + 1, min(stop, room))]),
    )


def token_end(source: str, start: int) -> int:
    """Return the index after the key, value or whitespace that starts at index `start` of a line."""
    for pattern in (BLANKS, KEY, QUOTED):
        if match := pattern.match(source, start):
            return match.end()
    opener = source[start : start + 1]
    if opener in CLOSERS:
        return _flow_end(source, start, opener)
    rest = COMMENT.sub("", source[start:]).rstrip()
    if _is_in_flow(source[:start]):
        rest = re.split(r"[,\]}]", rest, maxsplit=1)[0].rstrip()
    return start + max(1, len(rest))


def _flow_end(source: str, start: int, opener: str) -> int:
    """Return the index after a list or mapping, or the end of the line if it continues on the next line."""
    depth = 0
    for place in range(start, len(source)):
        depth += (source[place] == opener) - (source[place] == CLOSERS[opener])
        if depth == 0:
            return place + 1
    return len(COMMENT.sub("", source).rstrip())


def _is_in_flow(before: str) -> bool:
    return any(before.count(opener) > before.count(closer) for opener, closer in CLOSERS.items())


def _blanks_as_wide_as(text: str) -> str:
    return "".join("\t" if char == "\t" else " " * display_width(char) for char in text)
