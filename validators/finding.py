"""What a rule says, and what a check ends in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding weighs: `fail` blocks, `warn` blocks under --strict only."""

    FAIL = "fail"
    WARN = "warn"


class Status(StrEnum):
    """What a check ends in. A required skip or unknown never counts as a pass."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Level(StrEnum):
    """What a rule needs to be judged, from cheap to dear."""

    STATIC = "static"
    HOST = "host"
    GPU = "gpu"
    DISTRIBUTED = "distributed"
    DATA = "data"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True, slots=True)
class Violation:
    """What a rule yields: the key it is about, what is wrong, and the edit that mends it.

    `severity` None is the rule's own; a violation may weigh less than its rule, never more.
    """

    path: str
    message: str
    hint: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation with its rule and its place in a file (`<command line>` for an override)."""

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
    """How one rule ended for one run."""

    id: str
    name: str
    level: Level
    status: Status
    required: bool
    message: str
    duration_s: float = 0.0
