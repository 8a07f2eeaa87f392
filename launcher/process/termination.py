"""Termination by signal as an exception, so that cleanup code runs."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

# Shells report a process that was ended by signal N with exit code 128 + N.
EXIT_BY_SIGNAL = 128


class TerminatedError(BaseException):
    """SIGTERM or SIGHUP to this process. A BaseException, so that no probe catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = EXIT_BY_SIGNAL + number


def unwind_when_terminated() -> None:
    """Make SIGTERM and SIGHUP raise TerminatedError; ignored ones (`nohup`) stay ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise TerminatedError, and ignore the same signal from now on: it must not interrupt the cleanup."""
    signal.signal(number, signal.SIG_IGN)
    raise TerminatedError(number)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9, or `signal N` if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
