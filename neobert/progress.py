"""Progress of long jobs in a child process: log lines, which the launcher shows in place on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG = logging.getLogger(__name__)
MARK = "progress: "
"""Beginning of a line of progress on the standard error of a child of the launcher."""
LAUNCHER_INTERVAL_S = 1.0
LOG_INTERVAL_S = 10.0
MINUTES_FROM_S = 120.0
OnProgress = Callable[[int], None]
"""Called with the number of parts that were just done."""


def unreported(number: int) -> None:
    """Ignore progress."""


def report_to_launcher() -> None:
    """Write progress to standard error with the mark by which the launcher recognizes it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{MARK}%(message)s"))
    _handle(handler)


@contextmanager
def reported_to(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with each line of progress inside the `with` block, and with an empty one after it."""
    handler = logging.Handler()
    handler.emit = lambda record: report(record.getMessage())  # type: ignore[method-assign]
    before = LOG.handlers[:], LOG.propagate, LOG.level
    _handle(handler)
    try:
        yield
    finally:
        LOG.handlers[:], LOG.propagate = before[:2]
        LOG.setLevel(before[2])
        report("")


def _handle(handler: logging.Handler) -> None:
    LOG.handlers[:], LOG.propagate = [handler], False
    LOG.setLevel(logging.INFO)


class Progress:
    """Count of completed parts, logged at intervals with the time left, or the rate without a known total.

    Attributes:
        done: completed parts, including those of an earlier process.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start counting.

        Args:
            what: activity, such as "encoding".
            unit: plural noun of what is counted.
        """
        self.done = self._skipped = 0
        self._what, self._unit, self._total, self._clock = what, unit, total, clock
        self._started_s = self._logged_s = clock()

    def skip(self, number: int) -> None:
        """Count parts that an earlier process completed, which are excluded from the rate."""
        self.done += number
        self._skipped += number

    def advance(self, number: int = 1) -> None:
        """Count newly completed parts."""
        self.done += number
        interval_s = LOG_INTERVAL_S if LOG.propagate else LAUNCHER_INTERVAL_S
        now_s = self._clock()
        if now_s - self._logged_s >= interval_s:
            self._logged_s = now_s
            LOG.info("%s", self._text(now_s - self._started_s))

    def _text(self, elapsed_s: float) -> str:
        rate = (self.done - self._skipped) / elapsed_s
        if self._total is None:
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            return f"{self._what}: {self.done:,} {self._unit}, {speed} per s"
        share = min(1.0, self.done / max(1, self._total))
        left = f", {_duration(max(0, self._total - self.done) / rate)} left" if rate else ""
        return f"{self._what}: {self.done:,} of {self._total:,} {self._unit} ({share:.0%}){left}"


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < MINUTES_FROM_S else f"{seconds / 60:,.0f} min"
