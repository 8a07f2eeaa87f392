"""Waivers: accepted findings, each with a reason and an expiry date. A waiver without effect is a finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date

from neobert.config.schema import Waiver
from profiles.registry import ResolvedRun
from validators.finding import Finding, Severity, Violation
from validators.rule import RETIRED, RULES, current_code

OVERRIDES = "CFG008"
SHORTEST_REASON = 10
"""Minimum length of a reason without unprintable characters and repeated whitespace."""


def mark_waived(findings: Iterable[Finding], waivers: Sequence[Waiver], today: date) -> list[Finding]:
    """Mark the findings that a valid waiver covers."""
    return [
        replace(finding, waived=is_waived(finding.code, waivers, today, finding.severity))
        for finding in findings
    ]


def is_waived(code: str, waivers: Sequence[Waiver], today: date, severity: Severity) -> bool:
    """Return whether a valid waiver covers the code today, at this severity.

    A waiver of a retired rule that only warned does not cover failures of its successor.
    """
    return any(
        current_code(waiver.code) == code
        and _is_in_force(waiver, today)
        and (waiver.code not in RETIRED or severity in (Severity.WARN, RETIRED[waiver.code].severity))
        for waiver in waivers
    )


def reason_for(code: str, waivers: Sequence[Waiver]) -> str:
    """Return the reasons and expiry dates of a code's waivers as text, with the name of a retired rule."""
    return "; ".join(
        f"{f'{waiver.code}, now {code}: ' if waiver.code in RETIRED else ''}{waiver.reason} "
        f"(until {waiver.expires})"
        for waiver in waivers
        if current_code(waiver.code) == code
    )


def waiver_violations(
    waivers: Sequence[Waiver], judged: set[str], raised: set[str], today: date
) -> Iterator[Violation]:
    """Yield violations for invalid, expired and unused waivers.

    `judged`: codes of rules that passed or had findings; `raised`: codes with findings.
    """
    for index, waiver in enumerate(waivers):
        fault = _waiver_fault(waiver, judged, raised, today)
        if fault:
            yield Violation(f"waivers.{index}", f"the waiver of {waiver.code} {fault[0]}", fault[1])


def violations_for_command_line_waivers(run: ResolvedRun) -> Iterator[Violation]:
    """Yield a violation for each waiver of CFG008 that is itself set on the command line."""
    for index, waiver in enumerate(run.config.waivers):
        path = f"waivers.{index}"
        if waiver.code == OVERRIDES and run.origin(f"{path}.code").kind == "override":
            message = f"the waiver of {OVERRIDES} is set on the command line"
            yield Violation(path, message, f"set the waiver of {OVERRIDES} in the run file")


def _waiver_fault(waiver: Waiver, judged: set[str], raised: set[str], today: date) -> tuple[str, str] | None:
    code = current_code(waiver.code)
    known = RULES.get(code)
    if known is None:
        return "names an unknown rule", "list the codes with `neobert-launch rule --all`"
    if not known.waivable:
        return (
            "is rejected: this rule cannot be waived",
            f"fix the finding of {waiver.code} and remove the waiver",
        )
    if not has_reason(waiver.reason):
        return (
            f"has no readable reason (at least {SHORTEST_REASON} characters)",
            "state in `reason:` why the finding is acceptable",
        )
    if waiver.expires < today:
        return f"expired on {waiver.expires}", "fix the finding, or set a later `expires:` date"
    if code in judged and code not in raised:
        return "has no effect: the rule has no finding", "remove the waiver"
    return None


def _is_in_force(waiver: Waiver, today: date) -> bool:
    known = RULES.get(current_code(waiver.code))
    return known is not None and known.waivable and has_reason(waiver.reason) and today <= waiver.expires


def has_reason(reason: str) -> bool:
    """Return whether a reason has enough visible characters, not counting repeated whitespace."""
    visible = "".join(char if char.isprintable() else " " for char in reason)
    return len(" ".join(visible.split())) >= SHORTEST_REASON
