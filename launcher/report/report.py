"""Report of a command: findings, checks and exit code, the same in every output format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from launcher.report.partial_checks import JudgedConfigError
from launcher.terminal.values import add_schema_version
from neobert.config.errors import ConfigError
from neobert.errors import EXIT_CHECK_UNKNOWN, EXIT_OK, ProjectError
from validators.finding import CheckResult, Finding, Severity

if TYPE_CHECKING:
    from profiles.registry import ResolvedRun

Verdict = Literal["pass", "fail", "unknown"]
SPOT = re.compile(r"(.+?):(\d+)(?::(\d+))?")
VERDICTS: dict[int, Verdict] = {EXIT_OK: "pass", EXIT_CHECK_UNKNOWN: "unknown"}


class Report(NamedTuple):
    """Result of a command.

    Attributes:
        exit_code: exit code of the command, the same in every format.
        profile: name of the profile; empty if there is none, or for several files.
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
        """Verdict of the exit code: pass for 0, unknown for EXIT_CHECK_UNKNOWN, else fail."""
        return VERDICTS.get(self.exit_code, "fail")

    def as_json(self) -> dict[str, Any]:
        """Return the content of the published JSON format."""
        content = {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "profile": self.profile,
            "config_hash": self.config_hash,
            "findings": [asdict(finding) for finding in self.findings],
            "checks": [{**asdict(check), "duration_s": round(check.duration_s, 4)} for check in self.checks],
        }
        return add_schema_version(content)


def run_report(
    run: ResolvedRun, findings: Iterable[Finding], checks: Iterable[CheckResult], *, strict: bool = False
) -> Report:
    """Return the report on one resolved run; with `strict`, warnings count as failures."""
    from validators.finding import compute_verdict

    reported, checked = tuple(findings), tuple(checks)
    exit_code = compute_verdict(reported, checked, strict=strict).exit_code
    profile = run.profile.name if run.profile else ""
    return Report(exit_code, profile, run.digest, reported, checked)


def error_report(error: ProjectError) -> Report:
    """Return the report of a command that ended with an error, which becomes its findings."""
    return Report(error.exit_code, "", "", tuple(error_findings(error)), ())


def error_findings(error: ProjectError) -> list[Finding]:
    """Convert an error to findings: one per problem of a ConfigError, a single one for any other error."""
    if isinstance(error, ConfigError):
        from validators.core import findings_from_config_error

        return findings_from_config_error(error) + list(
            error.findings if isinstance(error, JudgedConfigError) else ()
        )
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
