"""Clock since boot, which includes suspension and, unlike the system time, cannot be set."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def seconds_since_boot() -> float:
    """Return the seconds since boot, a clock that all processes on this machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Return the kernel's boot ID: times of `seconds_since_boot` are comparable only under the same ID.

    Empty if the kernel has no boot ID.
    """
    with suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return ""
