"""Rule findings, check results, and the overall verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from neobert.errors import EXIT_CHECK_FAILED, EXIT_CHECK_UNKNOWN, EXIT_OK


class Severity(StrEnum):
    """Severity of a finding: `fail` blocks a launch, `warn` blocks with --strict only."""

    FAIL = "fail"
    WARN = "warn"


class Status(StrEnum):
    """Result of a check. A required skip or unknown never counts as a pass."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Level(StrEnum):
    """Levels of facts that a rule needs, from cheap to expensive."""

    STATIC = "static"
    HOST = "host"
    GPU = "gpu"
    DISTRIBUTED = "distributed"
    DATA = "data"
    REHEARSAL = "rehearsal"


class Violation(NamedTuple):
    """Result of a rule: the config key, the problem, and the edit that fixes it.

    A `severity` of None means the rule's; a violation may be less severe than its rule, but not more.
    """

    path: str
    message: str
    hint: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation with its rule and its location in a file (`<command line>` for an override).

    Attributes:
        inherited_file: parent file that sets an inherited value; empty for another value. The location of the
            finding is then the line that names the parent.
    """

    code: str
    name: str
    severity: Severity
    path: str
    message: str
    hint: str
    file: str = ""
    line: int = 0
    column: int = 0
    waived: bool = False
    inherited_file: str = ""
    inherited_line: int = 0
    inherited_column: int = 0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one rule for one run."""

    id: str
    name: str
    level: Level
    status: Status
    required: bool
    message: str
    duration_s: float = 0.0


NOT_JUDGED = (Status.SKIP, Status.UNKNOWN)


class Verdict(NamedTuple):
    """Overall result of a run's checks, with the exit code of the process."""

    name: Literal["pass", "fail", "unknown"]
    exit_code: int


PASSED = Verdict("pass", EXIT_OK)
FAILED = Verdict("fail", EXIT_CHECK_FAILED)
NOT_KNOWN = Verdict("unknown", EXIT_CHECK_UNKNOWN)


def compute_verdict(
    findings: Iterable[Finding], checks: Iterable[CheckResult], *, strict: bool = False
) -> Verdict:
    """Return the verdict of a run's checks.

    It is `fail` if a finding blocks the launch, else `unknown` if a required check has no result. With
    `strict`, warnings block too.
    """
    if any(blocks_launch(finding, strict=strict) for finding in findings):
        return FAILED
    if any(check.required and check.status in NOT_JUDGED for check in checks):
        return NOT_KNOWN
    return PASSED


def blocks_launch(finding: Finding, *, strict: bool = False) -> bool:
    """Return whether a finding prevents the launch: it is not waived, and a failure or `strict` is set."""
    return not finding.waived and (strict or finding.severity is Severity.FAIL)
