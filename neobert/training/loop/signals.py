"""Stop requests. A handler only records them; the loop acts where all ranks can act together.

Imports no torch: the handlers are installed before anything slow starts. If the time at which a scheduler
ends the job is known, the clock makes the same request.
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
    """A stop request. Not a failure: the run ends with a checkpoint.

    A `BaseException`, so that code that handles every `Exception` as its own failure, such as reading text,
    lets it pass.
    """


class Signals:
    """The first stop request. Later ones change nothing: a save in flight is never cut short."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._is_waiting = False
        self._owner = os.getpid()
        self._is_late: list[Callable[[], bool]] = []

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Listen for SIGTERM, SIGINT and SIGUSR1 inside the `with` block."""
        self._owner = os.getpid()
        before = {number: signal.signal(number, self._note) for number in (*STOPS, WARNING)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop_by(self, end_s: float, lead_s: Callable[[], float], clock: Callable[[], float]) -> None:
        """Request a stop by the clock, as a scheduler would by SIGTERM.

        Args:
            end_s: when the job is killed, in seconds of the clock.
            lead_s: seconds before that at which to stop; at most a tenth of the time left now, so that a
                short job does not stop before its first step.
        """
        most_s = LEAD_SHARE * (end_s - clock())
        self._is_late.append(lambda: clock() + min(lead_s(), most_s) >= end_s)

    def request(self, kind: signal.Signals) -> None:
        """Request a stop from within this process; the first request counts."""
        self.requested = self.requested or kind

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a stop request interrupt the block with `StopRequested`. For blocks without work to be kept."""
        self._is_waiting = True
        try:
            self.raise_if_requested()
            yield
        finally:
            self._is_waiting = False

    def raise_if_requested(self) -> None:
        """Raise `StopRequested` if this process has a request."""
        if self.requested:
            raise StopRequested

    @property
    def votes(self) -> list[int]:
        """Return 1 for the kind of stop that was requested here, in the order of `STOPS`, else 0."""
        if self.requested is None and any(is_late() for is_late in self._is_late):
            self.requested = signal.SIGTERM
        return [int(self.requested == kind) for kind in STOPS]

    def obey(self, votes: Sequence[int]) -> None:
        """Raise `StopRequested` if any rank has a request, given the sum of the votes of all ranks."""
        for kind, count in zip(STOPS, votes, strict=True):
            if count:
                self.requested = self.requested or kind
                raise StopRequested

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _end_by(number)
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
        """Return how the run was stopped: a scheduler preempts, a person interrupts."""
        return "interrupted" if self.requested == signal.SIGINT else "preempted"

    @property
    def exit_code(self) -> int:
        """Return the exit code of that status."""
        return EXIT_INTERRUPTED if self.requested == signal.SIGINT else EXIT_PREEMPTED


def _end_by(number: int) -> None:
    """End a forked process, which inherited the handler and has nothing to save, by the default action."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
