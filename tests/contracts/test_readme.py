"""What the README promises is there: files, commands, make targets, and the refusal that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.cli import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make ([a-z-]+)", README)) - {"test-gpu"}
    assert {"demo", "test"} <= targets
    assert {each for each in targets if f"\n{each}:" not in makefile} == set()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"neobert-launch ([a-z]+)", README))))
def test_every_command_answers_for_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_the_example_that_is_shown_is_refused_by_five_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(ROOT / "examples" / "toy-on-a100.yaml")]) == 1
    out = capsys.readouterr().out
    assert {"MOD001", "PRE001", "CKP001", "ATT004", "BUD001", "BUD002"} <= set(re.findall(r"fail (\w+)", out))
    assert out.splitlines()[-1] in README


def test_the_plan_that_is_shown_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--profile", "h200-prod"]) == 0
    assert capsys.readouterr().out in README


def test_the_other_example_passes() -> None:
    assert run(["lint", str(ROOT / "examples" / "real-text.yaml")]) == 0
