"""The report that every format is written from, and the exit code that none of them changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from launcher.report.partial_checks import JudgedConfigError
from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_OK, ProjectError
from validators.finding import CheckResult, Finding, Severity

if TYPE_CHECKING:
    from profiles.registry import ResolvedRun

Verdict = Literal["pass", "fail", "unknown"]
SPOT = re.compile(r"(.+?):(\d+)(?::(\d+))?")
VERDICTS: dict[int, Verdict] = {EXIT_OK: "pass", EXIT_CHECK_UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a command.

    Attributes:
        exit_code: exit code of the command, the same in every format.
        profile: name of the profile; empty for none, or for several files.
        config_hash: digest of the resolved config; empty if it could not be resolved, or for several files.
        checks: one result per rule.
    """

    exit_code: int
    profile: str
    config_hash: str
    findings: tuple[Finding, ...]
    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> Verdict:
        """Pass, unknown, or fail for every other exit code."""
        return VERDICTS.get(self.exit_code, "fail")

    def as_json(self) -> dict[str, Any]:
        """The report's published shape."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "profile": self.profile,
            "config_hash": self.config_hash,
            "findings": [_finding_json(finding) for finding in self.findings],
            "checks": [_check_json(check) for check in self.checks],
        }


def report_of_run(
    run: ResolvedRun, findings: Iterable[Finding], checks: Iterable[CheckResult], *, strict: bool = False
) -> Report:
    """The report on one resolved run."""
    from validators.finding import verdict_of

    found, checked = tuple(findings), tuple(checks)
    exit_code = verdict_of(found, checked, strict=strict).exit_code
    profile = run.profile.name if run.profile else ""
    return Report(exit_code, profile, run.digest, found, checked)


def report_of_error(error: ProjectError) -> Report:
    """The report on a run that could not be judged: what stood in the way is its finding."""
    return Report(error.exit_code, "", "", tuple(findings_of_error(error)), ())


def findings_of_error(error: ProjectError) -> list[Finding]:
    """Each problem of a config as a finding; any other error is one finding, its place a spot or the path."""
    if isinstance(error, ConfigError):
        from validators.core import findings_of

        return findings_of(error) + list(error.findings if isinstance(error, JudgedConfigError) else ())
    finding = Finding(
        code=error.code,
        name=_rule_name(error.code),
        severity=Severity.FAIL,
        path=error.place,
        message=error.message,
        hint=error.hint,
    )
    if spot := SPOT.fullmatch(error.place):
        finding = replace(finding, path="", file=spot[1], line=int(spot[2]), column=int(spot[3] or 1))
    return [finding]


def _rule_name(code: str) -> str:
    """Return the name of the rule with this code; empty for codes of trainer errors."""
    import validators.rules  # noqa: F401
    from validators.rule import RULES

    return RULES[code].name if code in RULES else ""


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": str(finding.severity),
        "path": finding.path,
        "message": finding.message,
        "hint": finding.hint,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "waived": finding.waived,
    }


def _check_json(check: CheckResult) -> dict[str, Any]:
    return {
        "id": check.id,
        "name": check.name,
        "level": str(check.level),
        "status": str(check.status),
        "required": check.required,
        "message": check.message,
        "duration_s": round(check.duration_s, 4),
    }
