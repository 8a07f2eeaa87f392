"""Which checks of an earlier receipt stand for those of today."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from launcher.preflight.reused_checks import merge_reused_checks, reused_warnings, select_reused_checks
from neobert.receipt import Receipt
from tests.faults.machine import HEALTHY
from validators.facts import Facts, ProbeRecord
from validators.facts_io import facts_from_json
from validators.finding import CheckResult, Level, Status
from validators.rule import RULES

MEASURED = facts_from_json(HEALTHY.read_text(encoding="utf-8"))
TWO_GROUPS = next(rule for rule in RULES.values() if set(rule.needs) == {"gpus", "software"})
ONE_GROUP = next(rule for rule in RULES.values() if rule.needs == ("rehearsal",))


def check(code: str, status: Status, message: str = "") -> CheckResult:
    return CheckResult(code, RULES[code].name, Level.DATA, status, True, message)


def receipt_of(*checks: CheckResult) -> Receipt:
    return Receipt(
        config_digest="", profile="", code_version="", created_utc="", expires_utc="", verdict="pass",
        levels=(), waivers=(), hostname="", versions={}, checks=tuple(map(asdict, checks)),
    )  # fmt: skip


def without(*groups: str, probed: tuple[str, ...] = ()) -> Facts:
    """Facts without some groups, of which some were probed without an answer."""
    records = tuple(ProbeRecord(name=name, status="timeout", reason="", duration_s=1.0) for name in probed)
    return replace(MEASURED, probes=records, **dict.fromkeys(groups))


@pytest.mark.parametrize(
    ("facts", "is_reused"),
    [
        (without("gpus"), True),
        (without("gpus", "software"), True),
        (without("gpus", probed=("gpus",)), False),
        (without("gpus", "software", probed=("software",)), False),
        (without("gpus", "software", probed=("gpus", "software")), False),
        (without("gpus", probed=("software",)), True),
        (without(), False),
    ],
)
def test_only_what_was_not_measured_is_taken_from_the_receipt(facts, is_reused):
    now, earlier = check(TWO_GROUPS.code, Status.UNKNOWN), check(TWO_GROUPS.code, Status.PASS)
    merged = merge_reused_checks([now], receipt_of(earlier), facts)
    assert merged == [earlier if is_reused else now]
    assert select_reused_checks([now], merged) == ((earlier,) if is_reused else ())


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("earlier", [*Status, None])
def test_only_a_judged_result_replaces_only_an_unknown_one(status, earlier):
    now = check(ONE_GROUP.code, status)
    before = () if earlier is None else (check(ONE_GROUP.code, earlier, "earlier"),)
    merged = merge_reused_checks([now], receipt_of(*before), without("rehearsal"))
    is_reused = status is Status.UNKNOWN and earlier in (Status.PASS, Status.WARN)
    assert merged == [before[0] if is_reused else now]


def test_checks_of_levels_that_are_not_judged_today_are_added_in_their_order():
    first, last = sorted([TWO_GROUPS.code, ONE_GROUP.code])
    now, earlier = check(last, Status.PASS), check(first, Status.PASS)
    merged = merge_reused_checks([now], receipt_of(earlier), MEASURED)
    assert merged == [earlier, now]
    assert select_reused_checks([now], merged) == (earlier,)


@pytest.mark.parametrize(
    ("status", "message", "count"),
    [(Status.WARN, "slow", 1), (Status.WARN, "waived: known", 0), (Status.PASS, "slow", 0)],
)
def test_a_warning_is_shown_again_unless_it_was_waived(status, message, count):
    found: list[Any] = [
        *reused_warnings([check(ONE_GROUP.code, status, message)], "2026-01-01T00:00:00+00:00")
    ]
    assert len(found) == count
    for one in found:
        assert (one.code, one.message, one.severity) == (ONE_GROUP.code, "slow", "warn")
        assert "2026-01-01" in one.hint
