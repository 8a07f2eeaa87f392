"""Live view of a run: a progress bar on a terminal, plain lines elsewhere. Errors do not end the run."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Protocol

from launcher.rundir.live_state import Watch, describe
from launcher.terminal import console
from neobert.printable import printable
from neobert.progress import LOG_INTERVAL_S


class View(Protocol):
    """Interface of a live display of a run."""

    def refresh(self) -> None:
        """Show metrics and warnings since the last call."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainView:
    """View that passes one line of text per line of metrics to `write`."""

    def __init__(self, watch: Watch, write: Callable[[str], None]) -> None:
        self.watch = watch
        self.write = write
        self._shown_s = -math.inf

    def refresh(self) -> None:
        """Print warnings, progress of the start, and metrics since the last call."""
        beat = self.watch.heartbeat()
        for message in self.watch.new_warnings(beat):
            console.log(message)
        self._show_progress(beat.get("phase_doing"))
        for row in self.watch.metrics.read_new():
            self.write(describe(row, beat, self.watch.max_steps))

    def _show_progress(self, doing: str | None) -> None:
        """Print the progress of a long start, at most once every `LOG_INTERVAL_S` seconds."""
        now_s = time.monotonic()
        if doing and now_s - self._shown_s >= LOG_INTERVAL_S:
            self._shown_s = now_s
            self.write(printable(doing))

    def close(self) -> None:
        """Print the metrics since the last refresh."""
        self.refresh()


class SteadyView:
    """Wrapper that disables a failing view, e.g. on a full disk, and lets the run continue."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.has_failed = False

    def refresh(self) -> None:
        """Refresh the view, unless it has failed before."""
        self._try(self.view.refresh)

    def close(self) -> None:
        """Close the view, unless it has failed before."""
        self._try(self.view.close)

    def _try(self, act: Callable[[], None]) -> None:
        if self.has_failed:
            return
        try:
            act()
        except Exception as error:
            self.has_failed = True
            console.log(printable(f"live view disabled, training continues: {error}"))


def make_view(watch: Watch, output_format: str, *, is_quiet: bool = False) -> View:
    """Return a progress bar on a terminal, plain lines otherwise; with JSON output, lines go to stderr.

    A quiet view prints warnings only.
    """
    if is_quiet:
        return SteadyView(PlainView(watch, lambda _: None))
    if output_format == "json":
        return SteadyView(PlainView(watch, console.log))
    if console.is_terminal(sys.stdout):
        from launcher.run.progress_bar import ProgressView

        return SteadyView(ProgressView(watch))
    return SteadyView(PlainView(watch, console.write))
