"""What shows a run while it trains: a bar on a terminal, plain lines elsewhere; none of them can end it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from launcher.rundir.live_state import Watch, describe
from launcher.terminal import console
from neobert.printable import printable


class View(Protocol):
    """Something that shows how a run goes."""

    def refresh(self) -> None:
        """Show what is new."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainView:
    """One line for each line of metrics."""

    def __init__(self, watch: Watch, write: Callable[[str], None]) -> None:
        self.watch = watch
        self.write = write

    def refresh(self) -> None:
        """Print what is new."""
        beat = self.watch.heartbeat()
        for message in self.watch.new_warnings(beat):
            console.tell(message)
        for row in self.watch.metrics.read_new():
            self.write(describe(row, beat))

    def close(self) -> None:
        """Print what came last."""
        self.refresh()


class SteadyView:
    """Whatever a view meets, a full disk or a line that makes no sense, the run goes on without it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.has_failed = False

    def refresh(self) -> None:
        """Show what is new, if that still works."""
        self._try(self.view.refresh)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._try(self.view.close)

    def _try(self, act: Callable[[], None]) -> None:
        if self.has_failed:
            return
        try:
            act()
        except Exception as error:
            self.has_failed = True
            console.tell(printable(f"the run goes on, and can no longer be shown: {error}"))


def make_view(watch: Watch, output_format: str) -> View:
    """A progress bar on a terminal, plain lines elsewhere; beside JSON, lines go to standard error."""
    if output_format == "json":
        return SteadyView(PlainView(watch, console.tell))
    if console.is_terminal(sys.stdout):
        from launcher.run.progress_bar import ProgressView

        return SteadyView(ProgressView(watch))
    return SteadyView(PlainView(watch, console.write))
