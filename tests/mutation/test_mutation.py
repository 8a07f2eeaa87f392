"""The edits that are made, that they take hold, and that what is listed as equivalent is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.mutation.__main__ import NAMED
from tests.mutation.mutants import mutants_of
from tests.mutation.scorer import CANNOT_TELL, Seen, chosen_for
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
from validators import finding, thresholds
from validators.rules import mem
from validators.finding import Finding, Severity
from validators.rule import RULES

warning = Finding("X", "x", Severity.WARN, "", "", "")
blocks, rule = finding.blocks, RULES["MEM001"]
assert not blocks(warning)

def plant(module, before, after):
    file = Path(module.__file__).relative_to(ROOT)
    mutant = next(m for m in mutants_of(file) if (m.before, m.after) == (before, after))
    mutant.apply()
    transplant(module, mutant.tree)

plant(finding, "finding.severity is Severity.FAIL", "finding.severity is not Severity.FAIL")
assert blocks(warning)
plant(thresholds, "0.9", "0.909")
assert mem.MEMORY_SHARE == thresholds.MEMORY_SHARE == 0.909
plant(mem, "Severity.FAIL", "Severity.WARN")
assert RULES["MEM001"].severity is Severity.WARN is not rule.severity
"""
FAILS_AFTER = """
from pathlib import Path
from validators import thresholds

def test_made():
    runs = Path(__file__).with_suffix(".runs")
    with runs.open("a") as file:
        file.write("x")
    assert len(runs.read_text()) <= {number}
    assert thresholds.MEMORY_SHARE == 0.9

def test_sound():
    pass
"""
SCORES = """
import sys
from tests.mutation import __main__ as command
from tests.mutation.targets import ROOT, Suite

command.SUITES = (Suite("made", (ROOT / "validators/thresholds.py",), (sys.argv[1],)),)
sys.exit(command.main(["--only", "thresholds", "--jobs", "1"]))
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


def scored(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "test_made.py"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", SCORES, str(file)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def num_mutants() -> int:
    return sum(mutant.file.stem == "thresholds" for mutant in mutants_in(SUITES[0]))


@pytest.mark.parametrize("number", [0, 1, 2], ids=["at first", "when replaced by itself", "at the end"])
def test_no_score_is_given_where_a_test_fails_with_nothing_edited(number: int, tmp_path: Path) -> None:
    """A test is watched, then asked before the first mutant and behind the last."""
    before_the_end = number + (num_mutants() if number == 2 else 0)
    ended = scored(FAILS_AFTER.format(number=before_the_end), tmp_path)
    assert ended.returncode == CANNOT_TELL
    assert "mutants killed" not in ended.stdout
    assert "no score can be given" in ended.stderr
    assert "test_made.py::test_made" in ended.stderr
    assert "test_sound" not in ended.stderr


def test_no_score_is_given_where_tests_cannot_be_loaded(tmp_path: Path) -> None:
    ended = scored("import nothing_of_this_name\n", tmp_path)
    assert ended.returncode == CANNOT_TELL
    assert "no score can be given" in ended.stderr
    assert "test_made.py" in ended.stderr


def test_a_score_is_given_where_every_test_passes(tmp_path: Path) -> None:
    ended = scored(FAILS_AFTER.format(number=1000), tmp_path)
    assert ended.returncode in (0, 1)
    assert f"mutants killed 2/{num_mutants()} = " in ended.stdout


def test_the_tests_of_a_rule_are_found_by_its_code() -> None:
    codes = codes_in(Path("validators/rules/mod.py"))
    assert codes["_heads"] == {"MOD002"}
    assert codes[""] == {"MOD001", "MOD002", "MOD003", "MOD005"}


def test_an_edit_of_a_default_is_put_to_tests_that_run_no_line_of_its_file() -> None:
    default = next(m for m in mutants_of(Path("validators/finding.py")) if m.function == "Finding")
    elsewhere = Seen(None, {}, 0.0, frozenset())
    assert chosen_for(default, [elsewhere]) == [elsewhere]


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
