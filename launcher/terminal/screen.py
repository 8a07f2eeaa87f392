"""Full-screen display on a terminal, which is restored after errors and signals too."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Screen:
    """The alternate screen of a terminal, and its keys."""

    def __init__(self, keyboard: int | None) -> None:
        self._keyboard = keyboard

    def draw(self, lines: Sequence[str]) -> None:
        """Overwrite the screen in place, which avoids flicker. Lines must fit the terminal."""
        text = f"{END_OF_LINE}\r\n".join(lines)
        sys.stdout.write(f"{HOME}{text}{END_OF_LINE}{END_OF_SCREEN}")
        sys.stdout.flush()

    def key(self, timeout_s: float) -> str:
        """Return the keys pressed within `timeout_s`; empty if there are none."""
        if self._keyboard is None:
            time.sleep(timeout_s)
            return ""
        if not select.select([self._keyboard], [], [], timeout_s)[0]:
            return ""
        pressed = os.read(self._keyboard, 16)
        if not pressed:  # the terminal was closed, or its input
            self._keyboard = None
        return pressed.decode("ascii", errors="replace")


@contextmanager
def full_screen() -> Iterator[Screen]:
    """Show the alternate screen inside the `with` block; keys are read at once and not echoed."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keyboard) if keyboard is not None else None
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)  # Ctrl-C still interrupts
        sys.stdout.write(ENTER)
        yield Screen(keyboard)
    finally:
        with suppress(OSError):
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
        if keyboard is not None and before is not None:
            with suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
