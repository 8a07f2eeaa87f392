"""The line about work that takes seconds: shown on a terminal only, and gone afterwards."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from launcher.terminal import activity as module
from launcher.terminal import console
from launcher.terminal.activity import activity, announce


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr(console, "terminal_width", lambda *_: 30)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.usefixtures("_terminal")
def test_text_and_time_are_shown_and_erased(capsys):
    with activity("preparing the data"):
        announce("measuring gpu load \x1b[31m (2 of 5) and more")
        time.sleep(0.05)
        with activity("within"):
            console.log("a message")
    shown = capsys.readouterr().err
    assert "\x1b[Kpreparing the data  0 s\r" in shown
    assert "\x1b[Kmeasuring gpu load \N{REPLACEMENT CHARACTER}[31m  0 s\r" in shown, "cut to the terminal"
    assert "\x1b[Ka message\n" in shown
    assert "within" not in shown
    assert shown.endswith("\x1b[K")


@pytest.mark.usefixtures("_terminal")
def test_nothing_is_drawn_over_what_follows(monkeypatch):
    """While the line is erased, and marked as erased, the thread is on its way to draw: it waits for both."""
    drawn, drawing, paint = list[str](), threading.Event(), console.paint

    class SlowEvent(threading.Event):
        def set(self):
            time.sleep(0.02)
            super().set()

    def painted(*arguments, **options):
        drawing.set()
        return paint(*arguments, **options)

    def write(text):
        drawn.append(text)
        if text == module.ERASE:
            drawing.clear()
            assert drawing.wait(5)
            time.sleep(0.02)

    parts = {"Event": SlowEvent, "Lock": threading.Lock, "Thread": threading.Thread}
    monkeypatch.setattr(module, "threading", SimpleNamespace(**parts))
    monkeypatch.setattr(console, "paint", painted)
    monkeypatch.setattr(sys.stderr, "write", write)
    with activity("preparing the data"):
        pass
    time.sleep(0.05)
    assert len(drawn) > 1
    assert drawn[-1] == module.ERASE


@pytest.mark.usefixtures("_terminal")
def test_an_error_leaves_no_line_behind(capsys):
    with pytest.raises(KeyboardInterrupt), activity("preparing the data"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.endswith("\x1b[K")
    announce("alone")
    assert capsys.readouterr().err == "\x1b[Kalone\n"
