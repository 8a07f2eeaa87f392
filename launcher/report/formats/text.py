"""Findings for people: the place, the sentence, the line it is about, the way out."""

from __future__ import annotations

from collections import Counter

from launcher.report.finding_text import finding_text
from launcher.report.report import Report
from launcher.terminal import console
from launcher.terminal.console import paint
from launcher.terminal.fold import fold
from neobert.plurals import counted
from validators.finding import Severity, Status


def render(report: Report) -> str:
    """All findings, then one line that counts them."""
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
