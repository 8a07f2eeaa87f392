"""F1: the run that this project exists for, in its own trainer's names, on top of a production profile."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app

FILE = Path(__file__).with_name("nsa_showcase.yaml")
SAID = {
    "PRE001": ("runtime", "precision"),
    "ATT004": ("runtime", "use_flash"),
    "MOD001": ("model", "dim"),
    "CKP001": ("train",),
    "CKP002": ("train",),
    "BUD002": (),
}
MENDED = """
profile: a100-prod
seed: 1337
optimizer: {lr: 3.0e-4}
trainer: {logging_steps: 20, output_dir: artifacts/train_showcase}
"""


def line_of(*words: str) -> int:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(f"{words[-1]}:"))


def lines_by_code(report: Any) -> dict[str, set[tuple[str, int]]]:
    found: dict[str, set[tuple[str, int]]] = {}
    for finding in report["findings"]:
        assert finding["severity"] == "fail"
        found.setdefault(finding["code"], set()).add((Path(finding["file"]).name, finding["line"]))
    return found


@pytest.mark.parametrize("command", ["preflight", "train", "plan"])
def test_it_is_refused_and_judged(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    requested = [command, "-p", "a100-prod", "--config", str(FILE)]
    assert app.run([*requested, "--output-format", "json"]) == 1
    found = lines_by_code(json.loads(capsys.readouterr().out))
    for code, words in SAID.items():
        assert code in found
        assert not words or (FILE.name, line_of(*words)) in found[code]
    assert {"CFG001", "CFG007"} <= found.keys()
    assert len(found.keys() - {"CFG001", "CFG007"}) >= 5
    assert app.run(requested) == 1
    reported = capsys.readouterr().err
    assert all(code in reported for code in SAID)
    assert "write model.hidden_size" in reported
    assert "write model.type: nsa, model.block_size for l_sel" in reported
    assert not list(tmp_path.iterdir())


def test_lint_judges_it_as_well(capsys):
    assert app.run(["lint", str(FILE), "--output-format", "json"]) == 1
    found = lines_by_code(json.loads(capsys.readouterr().out))
    assert {"CFG005", "CFG007", "PRE001", "CKP001"} <= found.keys()


def test_control_the_same_wishes_in_our_names_and_at_full_size_pass(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(MENDED, encoding="utf-8")
    requested = ["preflight", "--config", "run.yaml", "--level", "static", "--output", "out"]
    assert app.run([*requested, "--output-format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
