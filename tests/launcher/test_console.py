"""Closed pipes, full disks, Ctrl-C, faults of our own: no traceback, and the right code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import app

pytestmark = pytest.mark.e2e


def test_a_reader_that_goes_away_changes_no_code(run_file, start_child):
    path = run_file("profile: cpu-demo\ntrainer:\n  save_step: 5\n")
    for words, code in ((("--help",), 0), (("lint", path), 1)):
        read, write = os.pipe()
        os.close(read)
        child = start_child(*words, stdout=write)
        os.close(write)
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (code, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [("--help",), ("plan", "-p", "cpu-demo", "--output-format", "json")],
)
def test_a_full_standard_output_is_an_error(words, run_child):
    with open("/dev/full", "w", encoding="utf-8") as full:
        answer = run_child(*words, stdout=full)
    assert answer.code == 1
    assert "No space left on device [output-failed]" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [(">&-", "lint {}.none", 2), ("2>&-", "lint {}.none", 2), ("<&- >&- 2>&-", "plan -c {}", 0)],
)
def test_closed_streams_are_null_devices(closed, words, code, run_file):
    shell = f"{sys.executable} -m launcher {words.format(run_file('profile: cpu-demo'))} {closed}"
    answer = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert answer.returncode == code
    assert "failed" not in answer.stderr


def test_names_in_any_encoding(run_child, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = os.fsdecode(b"l\xc3\xa4ufe-\xff.yaml")
    Path(name).write_text("trainer: [", encoding="utf-8")
    for output_format in ("text", "junit"):
        answer = run_child("lint", name, "--output-format", output_format)
        assert (answer.code, answer.err) == (2, ""), output_format


def test_a_fault_of_ours_is_a_line_and_a_file(capsys, monkeypatch, tmp_path):
    def fail(*_: object, **__: object) -> int:
        raise ZeroDivisionError("a fault")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("neobert.config.hydrate.json_schema", fail)
    assert app.run(["schema"]) == 3
    err = capsys.readouterr().err
    assert "neobert-launch failed: ZeroDivisionError: a fault" in err
    assert "Traceback" not in err
    (kept,) = tmp_path.glob("neobert-launch-*.traceback")
    assert "Traceback" in kept.read_text(encoding="utf-8")
    assert str(kept) in err
    monkeypatch.setenv("NEOBERT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        app.run(["schema"])


@pytest.mark.parametrize(("choice", "is_coloured"), [("always", True), ("never", False), ("auto", False)])
def test_the_choice_of_colour_overrides_the_environment(choice, is_coloured, capsys, monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    assert app.run(["--color", choice, "rule", "CKP001"]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is is_coloured
