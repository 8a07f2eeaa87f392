"""JUnit XML, for CI systems that show tests."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from launcher.report.report import Report
from neobert.printable import printable
from validators.finding import CheckResult, Finding, Severity, Status
from validators.rule import RULES, RaisedBy

REPORTED_STATUSES = (Status.FAIL, Status.UNKNOWN, Status.WARN)


def render(report: Report) -> str:
    """Return JUnit XML with a test case per check, and per finding that no check reports."""
    status = {check.id: check.status for check in report.checks}
    checks = [check for check in report.checks if not _repeats_failures(check, report)]
    cases = [_check_case(check, _findings_with_code(report, check.id)) for check in checks]
    cases += [
        _finding_case(finding)
        for finding in report.findings
        if _has_no_check(finding, status.get(finding.code))
    ]
    suite = ElementTree.Element("testsuite", name=printable(report.profile) or "neobert-launch")
    suite.extend(cases)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _repeats_failures(check: CheckResult, report: Report) -> bool:
    """Return whether a check of all files failed because of findings, which are failures themselves."""
    rule = RULES.get(check.id)
    is_of_all_files = rule is not None and rule.raised_by is RaisedBy.REPOSITORY
    return is_of_all_files and check.status is Status.FAIL and any(map(_is_failure, report.findings))


def _has_no_check(finding: Finding, status: Status | None) -> bool:
    """Return whether no check reports the finding: none has its code, or it passed for another file."""
    return status is None or (_is_failure(finding) and status not in REPORTED_STATUSES)


def _is_failure(finding: Finding) -> bool:
    return finding.severity is Severity.FAIL and not finding.waived


def _findings_with_code(report: Report, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code and not finding.waived]


def _check_case(check: CheckResult, findings: Sequence[Finding]) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=str(check.level), name=f"{check.id} {check.name}".strip()
    )
    case.set("time", f"{check.duration_s:.4f}")
    details = "\n".join(_finding_line(finding) for finding in findings) or check.message
    if check.status is Status.FAIL:
        _add_child(case, "failure", check.message, details)
    elif check.status is Status.UNKNOWN:
        _add_child(case, "error", check.message, details)
    elif check.status is Status.SKIP:
        _add_child(case, "skipped", check.message, "")
    elif check.status is Status.WARN:
        ElementTree.SubElement(case, "system-out").text = printable(details, keep="\n")
    return case


def _finding_case(finding: Finding) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname="config", name=printable(f"{finding.code} {finding.path}".strip())
    )
    if _is_failure(finding):
        _add_child(case, "failure", finding.message, _finding_line(finding))
    return case


def _add_child(case: ElementTree.Element, tag: str, message: str, text: str) -> None:
    child = ElementTree.SubElement(case, tag, message=printable(message))
    child.text = printable(text, keep="\n") or None


def _finding_line(finding: Finding) -> str:
    place = ":".join(str(part) for part in (finding.file, finding.line, finding.column) if part)
    hint = f"\nhint: {printable(finding.hint)}" if finding.hint else ""
    return printable(f"{place} {finding.code} {finding.message}".strip()) + hint
