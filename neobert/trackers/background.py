"""Background threads for trackers: training never waits for a tracker, and continues if one fails.

A tracker is a third-party package or service, which may raise, hang at start-up, or need a minute per step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from neobert.errors import ProjectError
from neobert.trackers.table import TRACKERS
from neobert.trackers.tracker import TrackedRun, Tracker

log = logging.getLogger(__name__)

# W&B gives up connecting after 90 s. The limit also bounds the lines that wait in memory.
LONGEST_WAIT_S = 120.0
# The last checkpoint is written by now, but a scheduler's grace period is running.
CLOSE_LIMIT_S = 30.0

Line = tuple[int, dict[str, float]]


class BackgroundTracker:
    """A tracker's session on a daemon thread, dropped when it fails or blocks."""

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        self.name = tracker.name
        self._tracker, self._run = tracker, run
        self._lines: SimpleQueue[Line | None] = SimpleQueue()
        # When each line that the thread has not finished was queued; the first entry is the start itself.
        self._unfinished = [time.monotonic()]
        self._lock = threading.Lock()
        self._is_dropped = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run_queue, name=f"tracker-{tracker.name}", daemon=True)
        self._thread.start()

    def log(self, row: Mapping[str, Any]) -> None:
        """Queue one line of metrics.jsonl for the tracker, without blocking.

        Drops the tracker if it has not accepted a line for `LONGEST_WAIT_S` seconds.
        """
        now_s = time.monotonic()
        with self._lock:
            if self._is_dropped:
                return
            self._unfinished.append(now_s)
            waited_s = now_s - self._unfinished[0]
        if waited_s > LONGEST_WAIT_S:
            self._drop(f"did not accept a line for {waited_s:.0f} s (limit {LONGEST_WAIT_S:.0f} s)")
            return
        null = self._tracker.null
        values = {name: null if value is None else value for name, value in row.items() if name != "step"}
        self._lines.put((row["step"], {name: value for name, value in values.items() if value is not None}))

    def end(self) -> None:
        """Request the end of the session after the queued lines, without blocking."""
        self._lines.put(None)

    def wait(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for the session to end, then drop the tracker."""
        if self._is_dropped:
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._drop(f"did not finish within {CLOSE_LIMIT_S:.0f} s")

    def _run_queue(self) -> None:
        try:
            session = self._tracker.start(self._run)
            self._finish_one()
            while (line := self._lines.get()) is not None:
                if self._is_dropped:
                    return
                session.log(line[1], line[0])
                self._finish_one()
            session.close()
        except (Exception, SystemExit) as error:  # a foreign package may raise anything
            self._drop(f"failed ({type(error).__name__}: {error})")

    def _finish_one(self) -> None:
        with self._lock:
            del self._unfinished[0]

    def take_problem(self) -> str:
        """Return and clear the message of a dropped tracker; empty if no tracker was dropped."""
        with self._lock:
            problem, self._problem = self._problem, ""
        return problem

    def _drop(self, problem: str) -> None:
        with self._lock:
            if not self._is_dropped:
                self._is_dropped = True
                consequence = f"continuing without {self.name}; metrics.jsonl is complete"
                self._problem = f"tracker {self.name} {problem}: {consequence}"


def open_trackers(names: Iterable[str], run: TrackedRun) -> Sequence[BackgroundTracker]:
    """Start the named trackers, each on its own thread.

    Raises `ProjectError` TRK001 if a tracker's package is not installed.
    """
    trackers = [TRACKERS[name] for name in names]
    for tracker in trackers:
        if not tracker.is_installed:
            raise ProjectError(
                "TRK001",
                f"tracker {tracker.name} is requested, but package {tracker.package} is not installed",
                f"{tracker.install}, or remove {tracker.name} from trackers; metrics.jsonl is always written",
                "trackers",
            )
    return [BackgroundTracker(tracker, run) for tracker in trackers]


def close_trackers(trackers: Sequence[BackgroundTracker]) -> None:
    """End all sessions in parallel, within `CLOSE_LIMIT_S` seconds in total, and log their failures."""
    for tracker in trackers:
        tracker.end()
    deadline_s = time.monotonic() + CLOSE_LIMIT_S
    for tracker in trackers:
        tracker.wait(max(0.0, deadline_s - time.monotonic()))
    for problem in filter(None, (tracker.take_problem() for tracker in trackers)):
        log.warning("%s", problem)
