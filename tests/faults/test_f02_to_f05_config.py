"""F2 to F5: a toy with every switch right, misspelt and doubled keys, wrong types, no save."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app

Said = dict[str, list[dict[str, Any]]]
Lint = Callable[[str], tuple[int, Said]]
TINY = """
profile: a100-prod
model:
  hidden_size: 128
  num_attention_heads: 2
  intermediate_size: 512
  num_hidden_layers: 2
"""
SAVES = """
profile: a100-prod
trainer:
  save_steps: {save_steps}
  max_steps: 50000
"""


@pytest.fixture
def lint(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """Lint a text in JSON and in text, which must agree; return the exit code and findings by code."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"

    def judge(text: str) -> tuple[int, Said]:
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        capsys.readouterr()
        code = app.run(["lint", path.name, "--output-format", "json"])
        report = json.loads(capsys.readouterr().out)
        assert report["exit_code"] == code == app.run(["lint", path.name])
        told = capsys.readouterr().out
        said: Said = {}
        for finding in report["findings"]:
            assert finding["code"] in told
            assert finding["message"] in told
            said.setdefault(finding["code"], []).append(finding)
        return code, said

    return judge


def place(finding: dict[str, Any]) -> tuple[str, int, int]:
    return finding["file"], finding["line"], finding["column"]


def test_f2_every_switch_is_right_and_the_model_is_tiny(lint: Lint) -> None:
    code, said = lint(TINY)
    assert (code, said.keys()) == (1, {"MOD001"})
    assert place(said["MOD001"][0]) == ("run.yaml", 3, 16)
    assert lint("profile: a100-prod\n") == (0, {})


@pytest.mark.parametrize(
    ("section", "key", "column", "hint"),
    [
        ("trainer", "save_step", 3, "did you mean trainer.save_steps?"),
        ("model", "save_steps", 3, "write trainer.save_steps (section trainer)"),
        ("datset", "max_seq_length", 1, "did you mean dataset?"),
    ],
)
def test_f3_a_misspelt_or_misplaced_key(lint: Lint, section: str, key: str, column: int, hint: str) -> None:
    code, said = lint(f"profile: a100-prod\n{section}:\n  {key}: 500\n")
    assert (code, said.keys()) == (1, {"CFG001"})
    assert said["CFG001"][0]["hint"] == hint
    assert place(said["CFG001"][0]) == ("run.yaml", 2 if column == 1 else 3, column)
    assert lint("profile: a100-prod\ntrainer:\n  save_steps: 200\n") == (0, {})


def test_f4_a_doubled_key_and_words_for_switches(lint: Lint) -> None:
    code, said = lint("profile: a100-prod\ntrainer:\n  save_steps: 250\n  tf32: no\n  save_steps: 0\n")
    assert (code, said.keys()) == (1, {"CFG002", "CFG003"})
    assert place(said["CFG002"][0]) == ("run.yaml", 5, 3)
    assert place(said["CFG003"][0]) == ("run.yaml", 4, 9)
    assert "write false" in said["CFG003"][0]["hint"]
    assert lint("profile: a100-prod\ntrainer:\n  save_steps: 250\n  tf32: false\n") == (0, {})


def test_f4_flash_no_is_named_and_read(lint: Lint) -> None:
    code, said = lint("profile: a100-prod\nmodel:\n  flash: no\n")
    assert (code, said.keys()) == (1, {"CFG007"})
    assert said["CFG007"][0]["hint"] == "write model.attn_backend: flash_attn_varlen"
    code, said = lint("profile: a100-prod\nmodel:\n  flash: false\n")
    assert code == 1
    assert {"CFG007", "ATT004"} <= said.keys()


@pytest.mark.parametrize("rate", ["5e-4", "5E-4", "0.0005"])
def test_f4_a_number_is_a_number(lint: Lint, rate: str, capsys: Any) -> None:
    assert lint(f"profile: a100-prod\noptimizer:\n  lr: {rate}\n") == (0, {})
    assert app.run(["explain", "optimizer.lr", "--config", "run.yaml", "--output-format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)["value"]
    assert (value, type(value)) == (0.0005, float)
    code, said = lint(f"profile: a100-prod\noptimizer:\n  lr: '{rate}'\n")
    assert (code, said.keys()) == (1, {"CFG003"})


@pytest.mark.parametrize("save_steps", [0, 50_000, 50_001])
def test_f5_saving_that_never_comes(lint: Lint, save_steps: int) -> None:
    code, said = lint(SAVES.format(save_steps=save_steps))
    assert code == 1
    assert place(said["CKP001"][0]) == ("run.yaml", 3, 15)
    assert lint(SAVES.format(save_steps=250)) == (0, {})


def test_f5_the_strategy_that_saves_nothing(lint: Lint) -> None:
    code, said = lint("profile: a100-prod\ntrainer:\n  save_strategy: 'no'\n")
    assert code == 1
    assert {"CFG007", "CKP001"} <= said.keys()
    assert place(said["CKP001"][0]) == ("run.yaml", 3, 18)
