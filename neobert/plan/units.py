"""Units that the plan counts in."""

from __future__ import annotations

BYTES_PER_MIB = 2**20
MIB_PER_GIB = 1024
SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600


def mib(num_bytes: float) -> float:
    """Convert bytes to MiB."""
    return num_bytes / BYTES_PER_MIB
