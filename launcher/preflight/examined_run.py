"""A run and all that a preflight found out about it."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.report.report import Report
from neobert.plan import Measured, Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level


@dataclass(frozen=True, slots=True)
class Examination:
    """A run, what follows from it, what is true of the machine, and the report on all of it.

    Attributes:
        plan: with what a rehearsal measured, where there was one; `predicted` without.
        unguarded: why the run may start whatever the report says; empty for a run that is guarded.
        measured: by a rehearsal, of this examination or of that behind an earlier receipt.
    """

    run: ResolvedRun
    plan: Plan
    facts: Facts
    levels: tuple[Level, ...]
    report: Report
    unguarded: str
    predicted: Plan
    measured: Measured | None
