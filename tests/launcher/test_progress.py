"""Progress of child processes: counted there, shown in place on a terminal, and now and then in a log."""

import io
import logging
import os
import re
import sys

import pytest

from launcher.probes import child as probe_child
from launcher.process import json_child
from launcher.terminal import activity as activity_module
from launcher.terminal import console
from neobert import progress as progress_module
from neobert.progress import MARK, Progress, report_to_launcher


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A logger of this test alone: sessions and threads of other tests leave levels, handlers and records."""
    logger = logging.Logger("progress", logging.INFO)
    monkeypatch.setattr(progress_module, "LOG", logger)
    return logger


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, log: logging.Logger) -> io.StringIO:
    """The standard error of a child of the launcher."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    report_to_launcher()
    return stream


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_progress_states_the_share_and_the_time_left(reported):
    clock = Clock()
    progress = Progress("encoding", "texts", 5000, clock=clock)
    progress.skip(1000)
    for _ in range(24):
        clock.now_s += 0.125
        progress.advance(100)
    assert reported.getvalue().splitlines() == [
        f"{MARK}encoding: 1,800 of 5,000 texts (36%), 4 s left",
        f"{MARK}encoding: 2,600 of 5,000 texts (52%), 3 s left",
        f"{MARK}encoding: 3,400 of 5,000 texts (68%), 2 s left",
    ]


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (None, "scoring: 4 texts, 0.4 per s"),
        (1000, "scoring: 4 of 1,000 texts (0%), 42 min left"),
        (2, "scoring: 4 of 2 texts (100%), 0 s left"),
    ],
)
def test_unknown_wrong_and_long_totals(total, text, reported):
    clock = Clock()
    progress = Progress("scoring", "texts", total, clock=clock)
    clock.now_s += 10
    progress.advance(4)
    assert reported.getvalue() == f"{MARK}{text}\n"


def test_outside_of_a_child_progress_is_a_rare_line_of_the_log(log):
    clock = Clock()
    lines = io.StringIO()
    log.addHandler(logging.StreamHandler(lines))
    progress = Progress("preparing", "documents", clock=clock)
    for _ in range(25):
        clock.now_s += 1
        progress.advance()
    assert lines.getvalue().splitlines() == [
        "preparing: 10 documents, 1 per s",
        "preparing: 20 documents, 1 per s",
    ]


CHILD = f"""
import sys
print("{MARK}reading: 10 of 20", file=sys.stderr)
print("{MARK}reading: 20 of 20", file=sys.stderr)
print("a warning", file=sys.stderr)
print('{{"done": true}}')
"""


@pytest.mark.child
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_of_a_child_is_shown_in_place_on_a_terminal(is_terminal, tmp_path, monkeypatch, capsys):
    (tmp_path / "counting_child.py").write_text(CHILD, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(console, "is_terminal", lambda stream: is_terminal and stream is sys.stderr)
    monkeypatch.setattr(activity_module, "TICK_S", 60.0)
    assert json_child.run_json_child("counting_child", {}, doing="loading", hint="") == {"done": True}
    shown = capsys.readouterr().err
    if is_terminal:
        erase = console.ERASE_LINE
        assert re.search(rf"{re.escape(erase)}loading  \d+ s\r", shown)
        assert re.search(rf"{re.escape(erase)}reading: 20 of 20  \d+ s\r", shown)
        assert shown.endswith(erase), "the line is gone with the work"
    else:
        assert shown == "reading: 10 of 20\na warning\n", "a log gets a line every ten seconds"


@pytest.mark.child
def test_progress_of_a_probe_is_passed_on_and_no_part_of_its_error(tmp_path):
    script = tmp_path / "probe.py"
    script.write_text(f"{CHILD}\nsys.exit(3)\n", encoding="utf-8")
    seen: list[str] = []
    command = (sys.executable, str(script))
    ended = probe_child.run_command(command, 20.0, dict(os.environ), seen.append)
    assert seen == ["reading: 10 of 20", "reading: 20 of 20"]
    assert str(probe_child.failure_error(command, ended)).endswith(": a warning")
