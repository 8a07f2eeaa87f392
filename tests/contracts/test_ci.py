"""What people copy into their CI works as it is written."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from launcher.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"neobert-launch (lint configs [^\n>&]*)", PAGE)))
FAILING = "profile: a100-prod\ntrainer:\n  save_steps: 0\n"


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "sound.yaml").write_text("profile: a100-prod\n", encoding="utf-8")
    return folder


def test_there_are_commands():
    assert len(COMMANDS) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_passes_and_fails(command, configs):
    assert app.run(shlex.split(command)) == 0
    (configs / "run.yaml").write_text(FAILING, encoding="utf-8")
    assert app.run(shlex.split(command)) == 1


def test_an_annotation_names_the_line(configs, capsys):
    (configs / "run.yaml").write_text(FAILING, encoding="utf-8")
    assert app.run(["lint", "configs", "--output-format", "github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("::error file=configs/run.yaml,line=3,col=15,title=CKP001") for line in lines)


def test_the_hook_is_a_command_that_takes_files(configs):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *words = shlex.split(hook["entry"])
    assert (program, hook["id"]) == ("neobert-launch", "neobert-lint")
    assert hook["id"] in PAGE
    assert app.run([*words, "configs/sound.yaml"]) == 0
    (configs / "run.yaml").write_text(FAILING, encoding="utf-8")
    assert app.run([*words, "configs/sound.yaml", "configs/run.yaml"]) == 1
