"""The edits that are made, that they take hold, and that what is listed as equivalent is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.mutation.__main__ import NAMED
from tests.mutation.mutants import mutants_of
from tests.mutation.targets import ROOT, SUITES, codes_in, mutants_in

SOURCE = '''"""Not 5, and not True."""
LIMIT = 0.5
COUNT: int = 3


def judge(a: int, b: int) -> object:
    """Never less than 7."""
    if a < b and not a:
        yield f"{a + 1}"
    if any(x == 1 for x in (a, b) if x):
        yield from (a, b)
    return Severity.FAIL
'''
TAKES_HOLD = """
from pathlib import Path
from tests.mutation.targets import ROOT
from tests.mutation.mutants import mutants_of
from tests.mutation.transplant import transplant
from validators import thresholds, verdict
from validators.rules import mem
from validators.finding import Finding, Severity
from validators.rule import RULES

warning = Finding("X", "x", Severity.WARN, "", "", "")
blocks, rule = verdict.blocks, RULES["MEM001"]
assert not blocks(warning)

def plant(module, before, after):
    file = Path(module.__file__).relative_to(ROOT)
    (mutant,) = [m for m in mutants_of(file) if (m.before, m.after) == (before, after)]
    mutant.apply()
    transplant(module, mutant.tree)

plant(verdict, "finding.severity is Severity.FAIL", "finding.severity is not Severity.FAIL")
assert blocks(warning)
plant(thresholds, "0.9", "0.909")
assert mem.MEMORY_SHARE == thresholds.MEMORY_SHARE == 0.909
plant(mem, "Severity.FAIL", "Severity.WARN")
assert RULES["MEM001"].severity is Severity.WARN is not rule.severity
"""


def test_every_kind_of_edit_is_made_and_no_text_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "judge.py"
    file.write_text(SOURCE, encoding="utf-8")
    made = {(mutant.before, mutant.after) for mutant in mutants_of(file)}
    assert made == {
        ("0.5", "0.505"), ("0.5", "0.495"), ("3", "4"), ("3", "2"),
        ("a < b", "a <= b"), ("a < b and (not a)", "a < b or not a"),
        ("a < b and (not a)", "not (a < b and (not a))"),
        ("yield f'{a + 1}'", "yield from ()"), ("yield from (a, b)", "yield from ()"),
        ("any((x == 1 for x in (a, b) if x))", "not any((x == 1 for x in (a, b) if x))"),
        ("any", "all"), ("x == 1", "x != 1"), ("1", "2"), ("1", "0"), ("x", "not x"),
        ("Severity.FAIL", "Severity.WARN"),
    }  # fmt: skip
    assert {mutant.function for mutant in mutants_of(file)} == {"", "judge"}


def test_an_edit_reaches_those_who_hold_the_function_the_constant_and_the_rule() -> None:
    subprocess.run([sys.executable, "-c", TAKES_HOLD], check=True, cwd=ROOT)


def test_the_tests_of_a_rule_are_found_by_its_code() -> None:
    codes = codes_in(Path("validators/rules/mod.py"))
    assert codes["_way_to_fit"] == {"MOD003"}
    assert codes[""] == {"MOD001", "MOD002", "MOD003"}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_there_are_mutants_in_every_file(suite) -> None:
    found = {ROOT / mutant.file for mutant in mutants_in(suite)}
    assert set(suite.files) - found <= {ROOT / "validators/rules/__init__.py"}


def test_what_is_listed_as_equivalent_is_an_edit_and_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    listed = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text(encoding="utf-8"))
    names = {mutant.name for suite in SUITES for mutant in mutants_in(suite)}
    for entry in listed:
        assert tuple(entry[part] for part in NAMED) in names
        assert len(entry["reason"]) > 20
    assert len(listed) <= 0.02 * len(names)
