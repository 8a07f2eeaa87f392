"""Clock that cannot be set: seconds since this machine was booted, including suspension."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def since_boot_s() -> float:
    """Return the seconds since boot, the same for every process of a machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot_id() -> str:
    """Return the identifier of this boot, so that times of different processes can be compared.

    Empty if the kernel has none.
    """
    with suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return ""
