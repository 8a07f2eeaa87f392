"""F8: a config that fails exits with the same code in every format, and so does one that passes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from launcher.cli import app, options

FORMATS = get_args(options.AnyFormat)
FILES = {
    "passing": ("profile: a100-prod\n", 0),
    "failing": ("profile: a100-prod\ntrainer:\n  save_steps: 0\n", 1),
    "misspelt": ("profile: a100-prod\ntrainer:\n  save_step: 5\n", 1),
    "unreadable": ("a: [\n", 2),
}


def test_all_formats_are_tried() -> None:
    assert set(FORMATS) == {"text", "json", "github", "sarif", "junit"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("output_format", FORMATS)
def test_lint(name: str, output_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, expected = FILES[name]
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    assert app.run(["lint", str(path), "--output-format", output_format]) == expected
    assert capsys.readouterr().out or (name, output_format) == ("passing", "github")


@pytest.mark.parametrize("output_format", get_args(options.TextOrJson))
@pytest.mark.parametrize(("more", "expected"), [((), 0), (("--set", "trainer.save_steps=0"), 1)])
def test_preflight(
    more: tuple[str, ...], expected: int, output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["preflight", "-p", "a100-prod", "--level", "static", "--output-format", output_format]
    assert app.run([*asked, *more]) == expected
