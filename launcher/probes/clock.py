"""The system clock: whether it can be right, and whether the kernel says that something keeps it right."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from launcher.io.shadowed_modules import PROJECT_ROOT

OWN_PACKAGE = PROJECT_ROOT / "launcher"
TIME_ERROR = 5
"""Returned by adjtimex(2) where the clock is not synchronized."""
TIMEX_BYTES = 512
"""More than `struct timex` takes on any platform. All zero: nothing is set, the state is only read."""


def clock_behind_s(package: Path = OWN_PACKAGE) -> float:
    """Seconds by which the clock is earlier than the newest file of a package; 0.0 for a later clock."""
    newest_s = max((file.stat().st_mtime for file in package.rglob("*.py")), default=0.0)
    return max(0.0, newest_s - time.time())


def is_clock_synchronized() -> bool | None:
    """Read the kernel's state of the clock; None where it does not say (a sandbox may refuse the call)."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR
