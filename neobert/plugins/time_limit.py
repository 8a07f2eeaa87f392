"""Time limit of calls of plug-ins, in the process that tests them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

_limit_s: ContextVar[float] = ContextVar("limit of a call", default=0.0)


class OverdueError(BaseException):
    """Raised inside a call that exceeds the limit; user code that catches every `Exception` lets it pass."""


@contextmanager
def calls_limited(limit_s: float) -> Iterator[None]:
    """Limit the calls of plug-ins that the main thread makes inside the `with` block."""
    before = _limit_s.set(limit_s)
    try:
        yield
    finally:
        _limit_s.reset(before)


@contextmanager
def within_limit() -> Iterator[None]:
    """Raise `OverdueError` inside the `with` block at the limit. Of nested blocks, the outer one counts."""
    limit_s = _limit_s.get()
    if not limit_s or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise OverdueError(f"did not return within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
