"""Requests to stop. A handler only notes them; the loop acts where all ranks can act together.

Imports no torch: the handlers are in place before anything slow begins.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

from neobert.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED

STOPS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """Somebody asked the run to stop. Not a failure: it ends with a checkpoint.

    It rises through code that takes every `Exception` for a fault of its own, as reading text does.
    """


class Signals:
    """Which stop was asked for first. Later ones change nothing: a save under way is never cut short."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._is_waiting = False

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Listen for SIGTERM and SIGINT while the block runs."""
        before = {number: signal.signal(number, self._note) for number in STOPS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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
        return [int(self.requested == kind) for kind in STOPS]

    def obey(self, votes: Sequence[int]) -> None:
        """Raise `StopRequested` where any rank was asked to stop, given the votes of all added up."""
        for kind, count in zip(STOPS, votes, strict=True):
            if count:
                self.requested = self.requested or kind
                raise StopRequested

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number)
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
