"""`watch`: live view of a run on a terminal, redrawn once a second until the run ends."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.commands.status import require_run
from launcher.report.run_view import Terminal, page
from launcher.rundir.directory import is_run_directory
from launcher.rundir.discovery import newest_run
from launcher.rundir.run_reader import RunReader
from launcher.terminal import console
from launcher.terminal.fold import fold
from neobert.errors import EXIT_OK
from neobert.printable import printable

REDRAW_S = 1.0
PIPE_SIZE = 100, 60
QUIT = "q"

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def run(named: Path | None) -> int:
    """Show a run until it ends or the user quits; print it once if it has ended, or without a terminal.

    Without a name, shows the newest run. On a terminal, a folder that does not exist yet is waited for: a
    launch creates it after its checks.
    """
    folder = named or newest_run()
    if console.is_terminal(sys.stdout) and not folder.exists():
        try:
            if not _wait_for(folder):
                return EXIT_OK
        except KeyboardInterrupt:
            return EXIT_OK
    require_run(folder)
    reader = RunReader(folder)
    snapshot = reader.read()
    if console.is_terminal(sys.stdout) and not snapshot.is_over:
        try:
            if not _follow(reader):
                return EXIT_OK
        except KeyboardInterrupt:
            return EXIT_OK
        snapshot = reader.read()
    console.write("\n".join(page(snapshot, _terminal())))
    return EXIT_OK


def _wait_for(folder: Path) -> bool:
    """Wait until a launch has created its run directory; return False if the user quits before that."""
    waiting = printable(f"{folder} does not exist yet: a launch creates it when its checks have passed")
    with _full_screen() as screen:
        while not is_run_directory(folder):
            screen.draw([*fold(waiting, _terminal().width).splitlines(), console.paint("q quits", "dim")])
            if QUIT in screen.key(REDRAW_S):
                return False
    return True


def _follow(reader: RunReader) -> bool:
    """Redraw the run once a second until it ends; return False if the user quits before that."""
    with _full_screen() as screen:
        while True:
            snapshot = reader.read()
            if snapshot.is_over:
                return True
            screen.draw([*page(snapshot, _terminal()), console.paint("q quits; the run continues", "dim")])
            if QUIT in screen.key(REDRAW_S):
                return False


def _terminal() -> Terminal:
    """Return the size of the terminal, less one row for the help line or the shell prompt."""
    columns, rows = shutil.get_terminal_size() if console.is_terminal(sys.stdout) else PIPE_SIZE
    return Terminal(columns, rows - 1, is_unicode=console.supports_blocks(sys.stdout))


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
def _full_screen() -> Iterator[Screen]:
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
