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


def raise_on_signals() -> None:
    """Make SIGTERM, SIGHUP and Ctrl-C raise an exception, each once; ignored ones (`nohup`) stay ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        interrupt_once()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise_terminated)


def _raise_terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise TerminatedError, and ignore the same signal from now on: it must not interrupt the cleanup."""
    signal.signal(number, signal.SIG_IGN)
    raise TerminatedError(number)


def interrupt_once() -> None:
    """Make the next Ctrl-C raise KeyboardInterrupt, and ignore others, which would interrupt the cleanup."""
    errors = iter([KeyboardInterrupt])

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # also while the interpreter ends
        for error in errors:  # none is left if this handler was put back since
            raise error

    signal.signal(signal.SIGINT, interrupt)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL for 9, or `signal N` if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
