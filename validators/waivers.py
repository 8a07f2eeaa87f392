"""Waivers: findings that somebody answers for, until a day. An idle waiver is itself a finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date

from neobert.config.schema import Waiver
from profiles.registry import ResolvedRun
from validators.finding import Finding, Violation
from validators.rule import RULES

OVERRIDES = "CFG008"
SHORTEST_REASON = 10
"""Characters that can be seen; the schema counts blanks among its ten."""


def lift(findings: Iterable[Finding], waivers: Sequence[Waiver], today: date) -> list[Finding]:
    """Mark the findings that a standing waiver lifts."""
    lifted = {waiver.code for waiver in waivers if _stands(waiver, today)}
    return [replace(finding, waived=finding.code in lifted) for finding in findings]


def stands(code: str, waivers: Sequence[Waiver], today: date) -> bool:
    """Whether somebody answers for a code today."""
    return any(waiver.code == code and _stands(waiver, today) for waiver in waivers)


def reason_for(code: str, waivers: Sequence[Waiver]) -> str:
    """Return who answers for a waived code and until when."""
    return "; ".join(f"{waiver.reason} (until {waiver.expires})" for waiver in waivers if waiver.code == code)


def faults(waivers: Sequence[Waiver], judged: set[str], found: set[str], today: date) -> Iterator[Violation]:
    """Yield what is wrong with the waivers, given the codes that were judged and those that were found."""
    for index, waiver in enumerate(waivers):
        fault = _fault(waiver, judged, found, today)
        if fault:
            yield Violation(f"waivers.{index}", f"the waiver of {waiver.code} {fault[0]}", fault[1])


def lifts_itself(run: ResolvedRun) -> Iterator[Violation]:
    """Yield the waivers of arguments that are arguments themselves: nobody reviewed them either."""
    for index, waiver in enumerate(run.config.waivers):
        path = f"waivers.{index}"
        if waiver.code == OVERRIDES and run.origin(f"{path}.code").kind == "override":
            message = f"the waiver of {OVERRIDES} is an argument itself"
            yield Violation(path, message, "put it into the run file")


def _fault(waiver: Waiver, judged: set[str], found: set[str], today: date) -> tuple[str, str] | None:
    known = RULES.get(waiver.code)
    if known is None:
        return "names no rule", "`neobert-launch rule --all` lists the codes"
    if not known.waivable:
        return (
            "is refused: this rule cannot be waived",
            f"mend what {waiver.code} names and remove the waiver",
        )
    if not says_why(waiver.reason):
        return "gives no reason that can be read", "say in a sentence why the finding may stand"
    if waiver.expires < today:
        return f"expired on {waiver.expires}", "mend the finding, or answer for it until another day"
    if waiver.code in judged and waiver.code not in found:
        return "lifts nothing", "remove it: the rule does not fire"
    return None


def _stands(waiver: Waiver, today: date) -> bool:
    known = RULES.get(waiver.code)
    return known is not None and known.waivable and says_why(waiver.reason) and today <= waiver.expires


def says_why(reason: str) -> bool:
    """Blanks at an end or in a row, and characters of no width, say nothing."""
    visible = "".join(char if char.isprintable() else " " for char in reason)
    return len(" ".join(visible.split())) >= SHORTEST_REASON
