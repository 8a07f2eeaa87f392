"""Stop requests. A handler only records them; the loop acts where all ranks can act together.

Imports no torch: the handlers are in place before anything slow begins. The clock asks in the same way, where
a scheduler ends the job at a time that is known.
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
# A scheduler's early warning asks for the same as the signal that follows.
WARNING = signal.SIGUSR1
# When the launch has to have stopped: by the time of day, as Slurm ends jobs; by a clock that nobody sets.
LEAD_SHARE = 0.1
AGAIN = b"asked to stop once more: the save under way goes on, a third Ctrl-C at the launcher ends it\n"


class StopRequested(BaseException):
    """Somebody asked the run to stop. Not a failure: it ends with a checkpoint.

    It rises through code that takes every `Exception` for a fault of its own, as reading text does.
    """


class Signals:
    """Which stop was asked for first. Later ones change nothing: a save under way is never cut short."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._is_waiting = False
        self._owner = os.getpid()
        self._is_late: list[Callable[[], bool]] = []

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Listen for SIGTERM, SIGINT and SIGUSR1 while the block runs."""
        self._owner = os.getpid()
        before = {number: signal.signal(number, self._note) for number in (*STOPS, WARNING)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop_by(self, end_s: float, lead_s: Callable[[], float], clock: Callable[[], float]) -> None:
        """Ask for a stop by the clock, as a scheduler would by SIGTERM.

        Args:
            end_s: when the job is killed, in seconds of the clock.
            lead_s: how long before that the loop has to hear of it; of a short job a tenth is enough, lest
                it stops before it has done anything.
        """
        most_s = LEAD_SHARE * (end_s - clock())
        self._is_late.append(lambda: clock() + min(lead_s(), most_s) >= end_s)

    def request(self, kind: signal.Signals) -> None:
        """Ask for a stop from within this process; the first request counts."""
        self.requested = self.requested or kind

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a request end the wait in the block with `StopRequested`: nothing in it is worth keeping."""
        self._is_waiting = True
        try:
            self.raise_if_requested()
            yield
        finally:
            self._is_waiting = False

    def raise_if_requested(self) -> None:
        """Raise `StopRequested` where this process was asked to stop."""
        if self.requested:
            raise StopRequested

    @property
    def votes(self) -> list[int]:
        """One for each kind of stop that this process was asked for, in the order of `STOPS`."""
        if self.requested is None and any(is_late() for is_late in self._is_late):
            self.requested = signal.SIGTERM
        return [int(self.requested == kind) for kind in STOPS]

    def obey(self, votes: Sequence[int]) -> None:
        """Raise `StopRequested` where any rank was asked to stop, given the votes of all added up."""
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
        """How a run that was stopped ended: a scheduler preempts, a person interrupts."""
        return "interrupted" if self.requested == signal.SIGINT else "preempted"

    @property
    def exit_code(self) -> int:
        """The exit code of that status."""
        return EXIT_INTERRUPTED if self.requested == signal.SIGINT else EXIT_PREEMPTED


def _end_by(number: int) -> None:
    """Let a forked process, which inherited the handler and has nothing to save, end as others do."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
