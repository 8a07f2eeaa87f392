"""Times at which a run must stop, given by the launcher to the trainer in environment variables.

A time of day follows the wall clock; a time since boot is immune to changes of that clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from neobert.clock import since_boot_s

STOP_BY_ENV, STOP_SINCE_BOOT_ENV = "NEOBERT_STOP_BY", "NEOBERT_STOP_SINCE_BOOT"
STOP_CLOCKS: dict[str, Callable[[], float]] = {STOP_BY_ENV: time.time, STOP_SINCE_BOOT_ENV: since_boot_s}
