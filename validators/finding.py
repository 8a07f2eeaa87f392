"""Findings of rules and results of checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Weight of a finding: `fail` blocks, `warn` blocks with --strict only."""

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
    """Facts that a rule needs, from cheap to expensive."""

    STATIC = "static"
    HOST = "host"
    GPU = "gpu"
    DISTRIBUTED = "distributed"
    DATA = "data"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True, slots=True)
class Violation:
    """Result of a rule: the config key, the problem, and the edit that fixes it.

    `severity` None is that of the rule; a violation may be less severe than its rule, never more.
    """

    path: str
    message: str
    hint: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation with its rule and its location in a file (`<command line>` for an override)."""

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
