"""The catalogue is complete, and the committed file is what the docstrings say today."""

from pathlib import Path

import pytest

from validators.pages import render_catalogue, render_page
from validators.rule import RULES

COMMITTED = Path(__file__).parents[2] / "docs" / "rules.md"


def test_committed_catalogue_is_current():
    hint = "run `make docs`: a rule's page has changed"
    assert COMMITTED.read_text(encoding="utf-8") == render_catalogue(), hint


def test_catalogue_has_every_rule_with_its_anchor():
    catalogue = render_catalogue()
    for code, rule in RULES.items():
        assert f"\n## {code} {rule.name}\n" in catalogue
        assert f"[{code} {rule.name}](#{code.lower()}-{rule.name})" in catalogue


def test_page_says_what_the_rule_needs_and_for_whom():
    page = render_page("CKP007")
    assert page.startswith("# CKP007 broken-resume-target\n")
    assert "needs the facts resume" in page
    assert "cannot be waived" in page
    assert "production runs only" in render_page("CKP003")


def test_a_comment_in_an_example_is_no_heading():
    assert "\n# a CI step that cannot fail\n" in render_catalogue()


def test_unknown_code_has_no_page():
    with pytest.raises(KeyError):
        render_page("XXX001")
