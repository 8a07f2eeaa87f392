"""Results of a preflight."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.report.report import Report
from neobert.plan import Measured, Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level


@dataclass(frozen=True, slots=True)
class Examination:
    """Run, plan, facts and report of a preflight.

    Attributes:
        plan: uses the measurements of a rehearsal, if there is one; `predicted` does not.
        unguarded: reason for launching even if checks fail; empty for a guarded run.
        measured: by a rehearsal, in this preflight or in that of an earlier receipt.
    """

    run: ResolvedRun
    plan: Plan
    facts: Facts
    levels: tuple[Level, ...]
    report: Report
    unguarded: str
    predicted: Plan
    measured: Measured | None
