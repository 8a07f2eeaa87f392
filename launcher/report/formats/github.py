"""Workflow commands of GitHub: an annotation at the line of each finding."""

from __future__ import annotations

from launcher.report.report import Report
from neobert.config import COMMAND_LINE
from neobert.printable import printable
from validators.finding import Finding, Severity

LEVEL = {Severity.FAIL: "error", Severity.WARN: "warning"}


def render(report: Report) -> str:
    """Return one line per finding: `::error`, `::warning`, or `::notice` for a waived finding."""
    return "\n".join(_annotation(finding) for finding in report.findings)


def _annotation(finding: Finding) -> str:
    level = "notice" if finding.waived else LEVEL[finding.severity]
    place: dict[str, str | int] = {}
    if finding.file and finding.file != COMMAND_LINE:
        place = {"file": finding.file, "line": max(1, finding.line), "col": max(1, finding.column)}
    place["title"] = f"{finding.code} {finding.name}".strip()
    properties = ",".join(f"{name}={_escape_property(str(value))}" for name, value in place.items())
    hint = f"\nhint: {finding.hint}" if finding.hint else ""
    return f"::{level} {properties}::{_escape(finding.message + hint)}"


def _escape(text: str) -> str:
    return printable(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
