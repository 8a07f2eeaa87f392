"""Findings as text: location, message, source line, hint."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator

from launcher.report.report import Report
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import fold
from neobert.config import COMMAND_LINE
from neobert.plurals import counted
from neobert.printable import printable
from validators.finding import Finding, Severity, Status

MOST_SHOWN = 120
COLOUR = {Severity.FAIL: "red", Severity.WARN: "yellow"}


def render(report: Report) -> str:
    """Write all findings, then one line that counts them."""
    parts = [finding_text(finding) for finding in report.findings]
    return "\n\n".join([*parts, summary(report)])


def summary(report: Report) -> str:
    """Return the counts and the verdict of the exit code."""
    standing = [finding for finding in report.findings if not finding.waived]
    fails = sum(finding.severity is Severity.FAIL for finding in standing)
    waived = len(report.findings) - len(standing)
    counts = [f"{fails} fail", f"{len(standing) - fails} warn"] + ([f"{waived} waived"] if waived else [])
    colour = {"pass": "green", "fail": "red", "unknown": "yellow"}[report.verdict]
    told = ", ".join([*counts, *_check_counts(report)])
    return fold(f"{paint(report.verdict, colour, 'bold')}: {told}", console.width())


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


def finding_text(finding: Finding) -> str:
    """Write a finding as a few lines, with source line and caret if the file can be read."""
    lines = [_head(finding), *_excerpt(finding), *_key(finding), *_hint(finding)]
    return fold("\n".join(lines), console.width())


def _head(finding: Finding) -> str:
    place = ":".join(str(part) for part in (finding.file, finding.line, finding.column) if part)
    weight = paint(str(finding.severity), COLOUR[finding.severity], "bold")
    waived = " (waived)" if finding.waived else ""
    label = f"{finding.code} {finding.name}".strip()
    sentence = printable(f"{label}: {finding.message}")
    return f"{paint(printable(place), 'bold')}: {weight}{waived} {sentence}".removeprefix(": ")


def _excerpt(finding: Finding) -> Iterator[str]:
    if not finding.line or finding.file == COMMAND_LINE:
        return
    source = printable(linecache.getline(finding.file, finding.line).rstrip("\r\n"), keep="\t")
    if not source.strip():
        return
    number = str(finding.line)
    margin = f"  {number} | "
    room = min(MOST_SHOWN, (console.width() or len(margin) + MOST_SHOWN) - len(margin))
    yield f"{margin}{source[:room]}"
    if 0 < finding.column <= room:
        indent = "".join("\t" if char == "\t" else " " for char in source[: finding.column - 1])
        yield f"  {' ' * len(number)} | {indent}{paint('^', COLOUR[finding.severity])}"


def _key(finding: Finding) -> Iterator[str]:
    """Yield the whole key, because an excerpt of one line lacks its section."""
    if "." in finding.path and finding.path not in finding.message + finding.hint:
        yield printable(f"  = key: {finding.path}")


def _hint(finding: Finding) -> Iterator[str]:
    if finding.hint:
        yield printable(f"  = hint: {finding.hint}")
