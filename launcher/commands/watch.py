"""`watch`: live view of a run on a terminal, redrawn once a second until the run ends."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.commands.status import require_run_directory
from launcher.report.run_view import TerminalSize, page_lines
from launcher.rundir.directory import is_run_directory
from launcher.rundir.discovery import newest_run
from launcher.rundir.run_reader import RunReader
from launcher.terminal import console
from launcher.terminal.fold import fold
from neobert.errors import EXIT_OK
from neobert.printable import printable

REDRAW_S = 1.0
PIPE_SIZE = 100, 60

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def run(folder: Path | None) -> int:
    """Show a run until it ends or Ctrl-C; print it once if it has ended or the output is not a terminal.

    Shows the newest run if `folder` is None. On a terminal, waits for a folder that does not exist yet,
    because a launch creates it after its checks.
    """
    folder, is_live = folder or newest_run(), console.is_terminal(sys.stdout)
    try:
        if is_live and not folder.exists():
            _wait_for(folder)
        require_run_directory(folder)
        reader = RunReader(folder)
        snapshot = reader.read()
        if is_live and not snapshot.is_over:
            _redraw_until_end(reader)
            snapshot = reader.read()
    except KeyboardInterrupt:
        return EXIT_OK
    console.write("\n".join(page_lines(snapshot, _terminal_size())))
    return EXIT_OK


def _wait_for(folder: Path) -> None:
    waiting = printable(f"{folder} does not exist yet: a launch creates it when its checks have passed")
    with _full_screen():
        while not is_run_directory(folder):
            _draw([*fold(waiting, _terminal_size().width).splitlines(), console.paint("Ctrl-C quits", "dim")])
            time.sleep(REDRAW_S)


def _redraw_until_end(reader: RunReader) -> None:
    with _full_screen():
        while not (snapshot := reader.read()).is_over:
            _draw(
                [
                    *page_lines(snapshot, _terminal_size()),
                    console.paint("Ctrl-C quits; the run continues", "dim"),
                ]
            )
            time.sleep(REDRAW_S)


def _terminal_size() -> TerminalSize:
    """Return the size of the terminal, less one row for the help line or the shell prompt."""
    columns, rows = shutil.get_terminal_size() if console.is_terminal(sys.stdout) else PIPE_SIZE
    return TerminalSize(columns, rows - 1, is_unicode=console.supports_block_characters(sys.stdout))


def _draw(lines: Sequence[str]) -> None:
    """Overwrite the screen in place, which avoids flicker. Lines must fit the terminal."""
    text = f"{END_OF_LINE}\r\n".join(lines)
    sys.stdout.write(f"{HOME}{text}{END_OF_LINE}{END_OF_SCREEN}")
    sys.stdout.flush()


@contextmanager
def _full_screen() -> Iterator[None]:
    try:
        sys.stdout.write(ENTER)
        yield
    finally:
        with suppress(OSError):
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
