"""Results of an earlier receipt, for checks whose facts this preflight did not measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from neobert.receipt import Receipt
from validators.facts import Facts
from validators.finding import CheckResult, Finding, Level, Severity, Status
from validators.rule import RULES

JUDGED = (Status.PASS, Status.WARN)
WAIVED = "waived: "


def read_checks(receipt: Receipt) -> list[CheckResult]:
    """Return the checks of a receipt. Raises KeyError, TypeError or ValueError if a check is damaged."""
    return list(map(_parse_check, receipt.checks))


def merge_reused_checks(checks: Iterable[CheckResult], receipt: Receipt, facts: Facts) -> list[CheckResult]:
    """Return the checks in order of code, with the receipt's results for checks that did not run now."""
    earlier = {check.id: check for check in read_checks(receipt)}
    now = {check.id: check for check in checks}
    kept = [
        earlier[code] if _replaces_current(earlier.get(code), check, facts) else check
        for code, check in now.items()
    ]
    return sorted(
        [*kept, *(check for code, check in earlier.items() if code not in now)], key=lambda check: check.id
    )


def select_reused_checks(
    checks: Iterable[CheckResult], merged: Iterable[CheckResult]
) -> tuple[CheckResult, ...]:
    """Return the checks whose result `merge_reused_checks` took from the receipt."""
    now = {check.id: check for check in checks}
    return tuple(check for check in merged if check.status in JUDGED and check is not now.get(check.id))


def reused_warnings(reused: Sequence[CheckResult], since_utc: str) -> Iterator[Finding]:
    """Yield a finding for each reused check with a warning that is not waived.

    A receipt stores checks but no findings, and --strict blocks on findings.
    """
    for check in reused:
        if check.status is Status.WARN and not check.message.startswith(WAIVED):
            hint = f"measured at {since_utc}; `neobert-launch preflight` measures {check.id} again"
            yield Finding(check.id, check.name, Severity.WARN, "", check.message, hint)


def _replaces_current(earlier: CheckResult | None, now: CheckResult, facts: Facts) -> bool:
    """Return whether an earlier result replaces the current one.

    Only an unknown result is replaced, and only if its facts are missing because no probe ran. A probe that
    failed, or facts that were inconclusive, are current results.
    """
    if now.status is not Status.UNKNOWN or earlier is None or earlier.status not in JUDGED:
        return False
    needs = RULES[now.id].needs if now.id in RULES else ()
    missing = [group for group in needs if getattr(facts, group) is None]
    return bool(missing) and not any(map(facts.was_probed, missing))


def _parse_check(content: Mapping[str, Any]) -> CheckResult:
    typed = {"level": Level(content["level"]), "status": Status(content["status"])}
    return CheckResult(**{**content, **typed})
