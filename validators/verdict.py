"""Verdict over findings and checks. A check that could not be judged is never a pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from neobert.errors import EXIT_CHECK_FAILED, EXIT_CHECK_UNKNOWN, EXIT_OK
from validators.finding import CheckResult, Finding, Severity, Status

NOT_JUDGED = (Status.SKIP, Status.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Overall result of a run's checks, with the exit code of the process."""

    name: Literal["pass", "fail", "unknown"]
    exit_code: int


PASSED = Verdict("pass", EXIT_OK)
FAILED = Verdict("fail", EXIT_CHECK_FAILED)
NOT_KNOWN = Verdict("unknown", EXIT_CHECK_UNKNOWN)


def verdict_of(
    findings: Iterable[Finding], checks: Iterable[CheckResult], *, strict: bool = False
) -> Verdict:
    """Return the verdict: fail before unknown before pass. `strict` makes warnings blocking."""
    if any(blocks(finding, strict=strict) for finding in findings):
        return FAILED
    if any(check.required and check.status in NOT_JUDGED for check in checks):
        return NOT_KNOWN
    return PASSED


def blocks(finding: Finding, *, strict: bool = False) -> bool:
    """Return whether the finding prevents a launch."""
    return not finding.waived and (strict or finding.severity is Severity.FAIL)
