"""Status line on standard error during work that takes seconds, on a terminal only; erased at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launcher.terminal import console
from launcher.terminal.fold import cut_end
from launcher.terminal.values import show_duration
from neobert.printable import printable

TICK_S = 1.0
LONG_WAIT_S = 30.0
ERASE = console.ERASE_LINE
_current: list[Activity] = []


class Activity:
    """Status line with a text and the elapsed time, which a thread updates."""

    def __init__(self, text: str) -> None:
        self._text, self._since_s = text, time.monotonic()
        self._is_over = threading.Event()
        self._writing = threading.Lock()
        self._draw()
        threading.Thread(target=self._update_until_closed, name="activity", daemon=True).start()

    def show(self, text: str, *, is_same: bool = False) -> None:
        """Replace the text; the elapsed time restarts unless the text is about the same work (`is_same`)."""
        with self._writing:
            self._text = text
            if not is_same:
                self._since_s = time.monotonic()
        self._draw()

    def close(self) -> None:
        """Erase the line; the thread draws nothing after that."""
        self._write(ERASE, is_last=True)

    def _update_until_closed(self) -> None:
        while not self._is_over.wait(TICK_S):
            self._draw()

    def _draw(self) -> None:
        """Draw the line, and leave the cursor at its start, so that the next output overwrites it."""
        elapsed = f"  {show_duration(round(time.monotonic() - self._since_s))}"
        room = max(1, console.terminal_width(sys.stderr) - 1 - len(elapsed))
        text = f"{cut_end(printable(self._text), room, mark='')}{elapsed}"
        self._write(f"{ERASE}{console.paint(text, 'dim', on=sys.stderr)}\r")

    def _write(self, text: str, *, is_last: bool = False) -> None:
        """Write to standard error unless the activity has ended; an error ends it."""
        with self._writing:
            if self._is_over.is_set():
                return
            try:
                sys.stderr.write(text)
                sys.stderr.flush()
            except OSError:
                is_last = True
            if is_last:
                self._is_over.set()


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Show a status line inside the `with` block, with this text until another is announced.

    Does nothing inside another activity, or if standard error is not a terminal.
    """
    if _current or not console.is_terminal(sys.stderr):
        yield
        return
    _current.append(Activity(text))
    try:
        yield
    finally:
        _current.pop().close()


def show_progress(text: str) -> None:
    """Show the progress of the current activity in its status line; do nothing if there is no activity."""
    if _current:
        _current[-1].show(text, is_same=True)


@contextmanager
def log_long_waits() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress; without a terminal, a text shown for `LONG_WAIT_S` is logged."""
    timers: list[threading.Timer] = []

    def show(text: str) -> None:
        show_progress(text)
        if timers:
            timers.pop().cancel()
        if not console.is_terminal(sys.stderr):
            note = printable(f"{text}: still waiting after {LONG_WAIT_S:g} s")
            timers.append(threading.Timer(LONG_WAIT_S, console.log, [note]))
            timers[0].daemon = True
            timers[0].start()

    try:
        yield show
    finally:
        for timer in timers:
            timer.cancel()


def announce(text: str) -> None:
    """Show a new text in the status line, or as a line of its own on a terminal without a status line."""
    if _current:
        _current[-1].show(text)
    elif console.is_terminal(sys.stderr):
        console.log(printable(text))
