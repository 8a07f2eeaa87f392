"""Every rule has been seen to fail, and to pass where one thing differs; every rule has its page."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import validators.rules  # noqa: F401  registers every rule
from validators.finding import Severity, Status
from validators.pages import SECTIONS
from validators.rule import CODE, RULES, RaisedBy

FIXTURES = Path(__file__).parent / "fixtures"
CASES: dict[str, dict[str, Any]] = {
    file.stem: yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
    for file in sorted(FIXTURES.glob("*.yaml"))
}
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
EXPECTED = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN}


def situations(kind: str) -> list[Any]:
    """(code, situation) for the fixture itself and for its neighbours at the limit."""
    return [
        pytest.param(code, case.get("base", {}) | {case["vary"]: value}, id=f"{code}-{number}")
        for code, case in CASES.items()
        for number, value in enumerate([case[kind], *case.get("at_limit", {}).get(kind, [])])
    ]


def test_every_rule_has_a_fixture_and_every_fixture_a_rule():
    assert CASES.keys() == RULES.keys()


def test_a_fixture_and_its_neighbour_differ():
    assert [code for code, case in CASES.items() if case["failing"] == case["passing"]] == []


@pytest.mark.parametrize(("code", "situation"), situations("failing"))
def test_rule_fires(code, situation, judge_once):
    judged = judge_once(situation)
    assert judged.status(code) is EXPECTED[RULES[code].severity]
    assert judged.of(code) or RULES[code].raised_by is RaisedBy.REPOSITORY
    for finding in judged.of(code):
        assert finding.name == RULES[code].name
        assert finding.message
        assert finding.hint or code == "CFG003"  # a bound in the message needs no other hint
        assert finding.file
        assert finding.line >= 1 or code == "CFG011"  # a file that cannot be read has no lines


@pytest.mark.parametrize(("code", "situation"), situations("passing"))
def test_rule_is_judged_and_silent(code, situation, judge_once):
    judged = judge_once(situation)
    may_warn = CASES[code].get("passing_may_warn", False)
    assert judged.status(code) is (Status.WARN if may_warn else Status.PASS)
    assert [finding for finding in judged.of(code) if not may_warn] == []


def is_complete(page: str) -> bool:
    places = [page.find(f"\n## {section}\n") for section in SECTIONS]
    sections = [page[start:end] for start, end in zip(places, [*places[1:], len(page)], strict=True)]
    has_sections = min(places) > 0 and places == sorted(places)
    is_filled = all(len(section.splitlines()) > 2 for section in sections)
    return has_sections and is_filled and page.partition("\n")[0].endswith(".") and page.count("```") == 4


def test_codes_names_and_pages_are_well_formed():
    assert [code for code, rule in RULES.items() if not is_complete(rule.page)] == []
    assert [code for code in RULES if not CODE.match(code)] == []
    assert [rule.name for rule in RULES.values() if not KEBAB.fullmatch(rule.name)] == []
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_all_but_a_few_codes_are_raised_by_their_own_judge():
    raised_elsewhere = {
        code: rule.raised_by for code, rule in RULES.items() if rule.raised_by is not RaisedBy.JUDGE
    }
    assert raised_elsewhere == {
        "CFG001": RaisedBy.LOADER,
        "CFG002": RaisedBy.LOADER,
        "CFG003": RaisedBy.LOADER,
        "CFG007": RaisedBy.LOADER,
        "CFG011": RaisedBy.LOADER,
        "CFG012": RaisedBy.LOADER,
        "PLG001": RaisedBy.LOADER,
        "CFG009": RaisedBy.WAIVERS,
        "CFG010": RaisedBy.REPOSITORY,
    }
