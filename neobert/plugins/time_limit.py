"""Time limit of plug-in calls, in the process that tests plug-ins."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

_limit_s: ContextVar[float] = ContextVar("limit of a call", default=0.0)


class TimeLimitExceededError(BaseException):
    """Raised inside a call that exceeds the limit; no `Exception`, so that user code does not catch it."""


@contextmanager
def limit_calls(limit_s: float) -> Iterator[None]:
    """Limit the calls of plug-ins that the main thread makes inside the `with` block."""
    before = _limit_s.set(limit_s)
    try:
        yield
    finally:
        _limit_s.reset(before)


@contextmanager
def enforce_limit() -> Iterator[None]:
    """Raise `TimeLimitExceededError` in the `with` block at the limit; the outermost block applies."""
    limit_s = _limit_s.get()
    if not limit_s or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise TimeLimitExceededError(f"did not return within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
