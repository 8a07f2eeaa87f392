"""Time that a probe requests before it reads the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from launcher.probes.probe import Subject
from neobert.units import BYTES_PER_MIB

# A busy network disk; a slower read counts as a hang.
SLOWEST_MIB_PER_S = 50
GRACE_S = 30.0


def request_reading_time(subject: Subject, folder: Path, size_bytes: int) -> None:
    """Request as much time as a slow disk needs to read `size_bytes` of a checkpoint folder."""
    size_mib = size_bytes / BYTES_PER_MIB
    subject.request_time(GRACE_S + size_mib / SLOWEST_MIB_PER_S, f"verifying {folder}: {size_mib:,.0f} MiB")
