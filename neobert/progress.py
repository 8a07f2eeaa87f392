"""Progress of long jobs in child processes: log lines that the launcher shows on one terminal line."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger(__name__)
MARK = "progress: "
"""Prefix of progress lines that a child process of the launcher writes to standard error."""
LAUNCHER_INTERVAL_S = 1.0
LOG_INTERVAL_S = 10.0
MINUTES_FROM_S = 120.0
OnProgress = Callable[[int], None]
"""Callback with the number of items completed since the last call."""


def ignore_progress(number: int) -> None:
    """Ignore progress: an `OnProgress` callback that does nothing."""


def report_to_launcher() -> None:
    """Write progress lines of this process to standard error, with the prefix `MARK` for the launcher."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{MARK}%(message)s"))
    _use_handler(handler)


@contextmanager
def forward_progress(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with each progress line logged inside the `with` block, and with "" at its end."""
    handler = logging.Handler()
    handler.emit = lambda record: report(record.getMessage())  # type: ignore[method-assign]
    before = LOG.handlers[:], LOG.propagate, LOG.level
    _use_handler(handler)
    try:
        yield
    finally:
        LOG.handlers[:], LOG.propagate = before[:2]
        LOG.setLevel(before[2])
        report("")


def _use_handler(handler: logging.Handler) -> None:
    LOG.handlers[:], LOG.propagate = [handler], False
    LOG.setLevel(logging.INFO)


class Progress:
    """Count of completed items, logged at intervals with the time left, or the rate if total is None.

    Attributes:
        done: number of completed items, including items of an earlier process.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            what: activity, such as "encoding".
            unit: plural noun for the items, such as "documents".
            total: number of items; None if unknown.
            clock: returns a time in seconds.
        """
        self.done = self._skipped = 0
        self._what, self._unit, self._total, self._clock = what, unit, total, clock
        self._started_s = self._logged_s = clock()

    def skip(self, number: int) -> None:
        """Count items that an earlier process completed; they are excluded from the rate."""
        self.done += number
        self._skipped += number

    def advance(self, number: int = 1) -> None:
        """Count newly completed items; log a progress line if the interval has passed."""
        self.done += number
        interval_s = LOG_INTERVAL_S if LOG.propagate else LAUNCHER_INTERVAL_S
        now_s = self._clock()
        if now_s - self._logged_s >= interval_s:
            self._logged_s = now_s
            LOG.info("%s", self._format_line(now_s - self._started_s))

    def _format_line(self, elapsed_s: float) -> str:
        rate = (self.done - self._skipped) / elapsed_s
        if self._total is None:
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            return f"{self._what}: {self.done:,} {self._unit}, {speed} per s"
        share = min(1.0, self.done / max(1, self._total))
        left = f", {_format_duration(max(0, self._total - self.done) / rate)} left" if rate else ""
        return f"{self._what}: {self.done:,} of {self._total:,} {self._unit} ({share:.0%}){left}"


def _format_duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < MINUTES_FROM_S else f"{seconds / 60:,.0f} min"
