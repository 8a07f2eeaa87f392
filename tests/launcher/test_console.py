"""Closed pipes, full disks, Ctrl-C, faults of our own: no traceback, and the right code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import app
from neobert.errors import ProjectError

pytestmark = pytest.mark.e2e


def test_a_reader_that_goes_away_changes_no_code(run_file: Any, start_child: Callable[..., Any]) -> None:
    path = run_file("profile: cpu-demo\ntrainer:\n  save_step: 5\n")
    for words, code in ((("--help",), 0), (("rule", "--all"), 0), (("lint", path), 1)):
        read, write = os.pipe()
        os.close(read)
        child = start_child(*words, stdout=write)
        os.close(write)
        _, err = child.communicate(timeout=60)
        assert (child.returncode, err) == (code, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ("rule", "--all"),
        ("profiles", "list"),
        ("--help",),
        ("plan", "-p", "cpu-demo", "--output-format", "json"),
    ],
)
def test_a_full_standard_output_is_an_error(words: tuple[str, ...], run_child: Callable[..., Any]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        answer = run_child(*words, stdout=full)
    assert answer.code == 1
    assert "No space left on device [output-failed]" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_null_devices(closed: str, run_file: Callable[[str], Path]) -> None:
    path = run_file("profile: cpu-demo\n")
    for words, code in ((f"plan -c {path}", 0), (f"lint {path}.none", 2)):
        shell = f"{sys.executable} -m launcher {words} {closed}"
        answer = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
        assert answer.returncode == code
        assert "failed" not in answer.stderr


def test_names_in_any_encoding(run_child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    name = os.fsdecode(b"l\xc3\xa4ufe-\xff.yaml")
    Path(name).write_text("trainer: [", encoding="utf-8")
    for output_format in ("text", "json", "github", "sarif", "junit"):
        answer = run_child("lint", name, "--output-format", output_format)
        assert (answer.code, answer.err) == (2, ""), output_format


def opened_by_a_reader(fifo: Path) -> int | None:
    """Open a fifo for writing; None if nobody reads it yet."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_ctrl_c_before_anything_started(start_child: Callable[..., Any], tmp_path: Path) -> None:
    fifo = tmp_path / "run.yaml"
    os.mkfifo(fifo)
    child = start_child("plan", "-c", fifo)
    while (writer := opened_by_a_reader(fifo)) is None:
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    os.close(writer)
    assert child.returncode == 130
    assert "Traceback" not in err


def test_a_fault_of_ours_is_a_line_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_project_errors_say_where_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    from launcher.cli.errors import deliver_error

    assert deliver_error(ProjectError("X", "it is wrong", "mend it", "here", 2), "text") == 2
    assert capsys.readouterr().err == "error: here: it is wrong [X]\n  = hint: mend it\n"


@pytest.mark.parametrize(("choice", "is_coloured"), [("always", True), ("never", False), ("auto", False)])
def test_the_choice_of_colour_overrides_the_environment(
    choice: str, is_coloured: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    assert app.run(["--color", choice, "rule", "CKP001"]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is is_coloured
