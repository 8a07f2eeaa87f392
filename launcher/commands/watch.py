"""`watch`: live view of a run on a terminal, redrawn once a second until the run ends."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from launcher.commands.status import require_run
from launcher.report.run_view import Terminal, page
from launcher.rundir.directory import is_run_directory
from launcher.rundir.newest import newest_run
from launcher.rundir.run_reader import RunReader
from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.screen import full_screen
from neobert.errors import EXIT_OK
from neobert.printable import printable

REDRAW_S = 1.0
PIPE_SIZE = 100, 60
QUIT = "q"


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
    with full_screen() as screen:
        while not is_run_directory(folder):
            screen.draw([*fold(waiting, _terminal().width).splitlines(), console.paint("q quits", "dim")])
            if QUIT in screen.key(REDRAW_S):
                return False
    return True


def _follow(reader: RunReader) -> bool:
    """Redraw the run once a second until it ends; return False if the user quits before that."""
    with full_screen() as screen:
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
