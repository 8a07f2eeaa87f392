"""Stop requests by signal or time limit. The signal handler records them; all ranks stop at the same step.

Imports no torch, so that the handlers are installed before slow imports. If the time limit of a scheduled job
is known, a stop is requested shortly before it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal

from neobert.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED

STOPS = (signal.SIGTERM, signal.SIGINT)
# A scheduler's early warning: handled as the SIGTERM that follows.
WARNING = signal.SIGUSR1
LEAD_SHARE = 0.1
AGAIN = b"second stop request: the save in flight continues; a third Ctrl-C at the launcher kills it\n"


class StopRequested(BaseException):
    """Raised to stop the run on request. Not a failure: the run ends with a checkpoint.

    Derived from `BaseException`, so that `except Exception`, for example in data readers, does not catch it.
    """


class Signals:
    """Signal handlers and the first stop request. Later requests are ignored, so saves always complete."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._is_waiting = False
        self._owner = os.getpid()
        self._is_late: list[Callable[[], bool]] = []

    @contextmanager
    def handle_signals(self) -> Iterator[Signals]:
        """Handle SIGTERM, SIGINT and SIGUSR1 inside the `with` block, and restore the handlers after it."""
        self._owner = os.getpid()
        before = {number: signal.signal(number, self._record_signal) for number in (*STOPS, WARNING)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop_by(self, end_s: float, lead_s: Callable[[], float], clock: Callable[[], float]) -> None:
        """Request a stop before a time limit, with the same effect as SIGTERM.

        Args:
            end_s: time at which the job is killed, in seconds of `clock`.
            lead_s: returns the seconds before `end_s` at which to stop. Limited to a tenth of the time left
                now, so that a short job does not stop before its first step.
            clock: returns the current time in seconds.
        """
        max_s = LEAD_SHARE * (end_s - clock())
        self._is_late.append(lambda: clock() + min(lead_s(), max_s) >= end_s)

    def request(self, kind: signal.Signals) -> None:
        """Request a stop from within this process; ignored if there is a request already."""
        self.requested = self.requested or kind

    @contextmanager
    def raise_on_request(self) -> Iterator[None]:
        """Raise `StopRequested` inside the `with` block as soon as a stop is requested.

        Only for blocks that can be interrupted without losing work.
        """
        self._is_waiting = True
        try:
            self.raise_if_requested()
            yield
        finally:
            self._is_waiting = False

    def raise_if_requested(self) -> None:
        """Raise `StopRequested` if a stop was requested in this process."""
        if self.requested:
            raise StopRequested

    @property
    def votes(self) -> list[int]:
        """Return one number per signal in `STOPS`: 1 if this process received that stop request, else 0.

        Checks the time limits of `stop_by` first.
        """
        if self.requested is None and any(is_late() for is_late in self._is_late):
            self.requested = signal.SIGTERM
        return [int(self.requested == kind) for kind in STOPS]

    def stop_if_requested(self, votes: Sequence[int]) -> None:
        """Raise `StopRequested` if any rank has a stop request.

        `votes`: the property `votes`, summed over all ranks.
        """
        for kind, count in zip(STOPS, votes, strict=True):
            if count:
                self.requested = self.requested or kind
                raise StopRequested

    def _record_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A forked child process inherited the handler: end by the signal's default action.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.requested is None:
            self.requested = signal.SIGTERM if number == WARNING else signal.Signals(number)
        else:
            with suppress(OSError):
                os.write(1, AGAIN)  # a handler may not print into a buffer that is being written
        if self._is_waiting:
            self._is_waiting = False
            raise StopRequested

    @property
    def status(self) -> Literal["preempted", "interrupted"]:
        """Return "interrupted" if the request is SIGINT (Ctrl-C, `.HALT`), else "preempted"."""
        return "interrupted" if self.requested == signal.SIGINT else "preempted"

    @property
    def exit_code(self) -> int:
        """Return the exit code for `status`."""
        return EXIT_INTERRUPTED if self.requested == signal.SIGINT else EXIT_PREEMPTED
