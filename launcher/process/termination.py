"""An end that is asked for from outside is an exception: what was begun is undone on the way out."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

# The numbers above it say by which signal a process ended, in every shell.
EXIT_BY_SIGNAL = 128


class TerminatedError(BaseException):
    """A scheduler or a closed terminal ends this process. No probe may take it for a fault of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = EXIT_BY_SIGNAL + number


def unwind_when_terminated() -> None:
    """Have SIGTERM and SIGHUP raise TerminatedError; where one is ignored (`nohup`), that stays so."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise once: the second one would come into the middle of the way out."""
    signal.signal(number, signal.SIG_IGN)
    raise TerminatedError(number)


def signal_name(number: int) -> str:
    """SIGKILL for 9; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
