"""SARIF 2.1.0, for code scanning services and editors."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import validators.rules  # noqa: F401  registers every rule
from launcher.report.report import Report
from launcher.terminal.values import to_json
from neobert import __version__
from neobert.config import COMMAND_LINE
from validators.finding import Finding, Severity
from validators.rule import RULES, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVEL = {Severity.FAIL: "error", Severity.WARN: "warning"}


def render(report: Report) -> str:
    """Return a SARIF log of one run, with every published rule and one result per finding."""
    return to_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run_object(report)]})


def _run_object(report: Report) -> dict[str, Any]:
    codes = sorted({*RULES, *(finding.code for finding in report.findings)})
    driver = {
        "name": "neobert-launch",
        "version": __version__,
        "rules": [_rule_object(code, RULES.get(code)) for code in codes],
    }
    return {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result_object(finding, codes.index(finding.code)) for finding in report.findings],
        "invocations": [{"executionSuccessful": True, "exitCode": report.exit_code}],
    }


def _rule_object(code: str, rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"id": code}
    page = rule.page.strip()
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": page.splitlines()[0] if page else rule.name},
        "help": {"text": page or rule.name, "markdown": page or rule.name},
        "defaultConfiguration": {"level": LEVEL[rule.severity]},
    }


def _result_object(finding: Finding, rule_index: int) -> dict[str, Any]:
    hint = f"\nHint: {finding.hint}" if finding.hint else ""
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": LEVEL[finding.severity],
        "message": {"text": finding.message + hint},
        "locations": [_location_object(finding)],
    }
    if finding.inherited_file:
        place = _physical_location(finding.inherited_file, finding.inherited_line, finding.inherited_column)
        result["relatedLocations"] = [{"message": {"text": "set here"}, "physicalLocation": place}]
    if finding.waived:
        result["suppressions"] = [{"kind": "inSource"}]
    return result


def _location_object(finding: Finding) -> dict[str, Any]:
    """Return the SARIF location of a finding: its key, and its place in a file if it is in one."""
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.path or "run"}]}
    if finding.file and finding.file != COMMAND_LINE:
        location["physicalLocation"] = _physical_location(finding.file, finding.line, finding.column)
    return location


def _physical_location(file: str, line: int, column: int) -> dict[str, Any]:
    return {
        "artifactLocation": {"uri": quote(os.fsencode(file))},
        "region": {"startLine": max(1, line), "startColumn": max(1, column)},
    }
