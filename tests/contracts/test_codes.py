"""A code means one thing, whoever raises it: the trainer, or a rule whose page it leads to."""

import re
from pathlib import Path

import pytest

import validators.rules  # noqa: F401  registers every rule
from launcher.commands.rule import ERROR_FAMILIES, find_rule
from launcher.report.report import error_findings
from neobert.errors import ProjectError
from validators.rule import RULES

ROOT = Path(__file__).parents[2]
TRAINING_HALF = ("data", "model", "objectives", "optim", "parallel", "tasks", "training", "export")
# The trainer finds the same trouble that the rule looks for, where nobody asked the rule.
SHARED = {
    "ATT001", "BUD002", "CFG011", "CKP004", "CKP007", "CKP008", "CKP010", "DAT001", "DAT002",
    "DAT004", "DAT006", "DAT009", "DAT013", "DAT018", "DST005", "HST009", "MOD002", "MOD005",
    "SFT001",
}  # fmt: skip


def test_the_trainer_raises_no_code_that_means_another_thing_to_a_rule():
    sources = [file for room in TRAINING_HALF for file in (ROOT / "neobert" / room).rglob("*.py")]
    raised = {code for file in sources for code in re.findall(r'"([A-Z]{3}\d{3})"', file.read_text("utf-8"))}
    assert raised >= {"DAT004", "TOK001"}
    assert raised & RULES.keys() <= SHARED


def test_no_error_is_taken_for_a_misspelt_rule():
    sources = [file for room in ("neobert", "launcher", "profiles") for file in (ROOT / room).rglob("*.py")]
    codes = {code for file in sources for code in re.findall(r'"([A-Z]{3}\d{3})"', file.read_text("utf-8"))}
    errors = codes - RULES.keys()
    assert {code[:3] for code in errors} >= set(ERROR_FAMILIES)
    for code in errors:
        with pytest.raises(ProjectError) as caught:
            find_rule(code)
        assert "error codes have no page" in caught.value.hint, code


def test_a_finding_made_of_an_error_carries_the_name_of_its_rule():
    findings = error_findings(ProjectError("CFG005", "unknown profile 'x'"))
    assert [finding.name for finding in findings] == ["unpinned-profile"]
    assert error_findings(ProjectError("TRN001", "a loss that is no number"))[0].name == ""
