"""Errors of the devices in the kernel's log. A log that cannot be read, or is not its own, says nothing."""

from __future__ import annotations

import re
import time

from launcher.probes.child import ask
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from validators.facts_gpu import GpuLogFacts, XidFacts

TIMEOUT_S = 4.0
# journald keeps what the kernel's ring has overwritten.
READERS = (
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output", "short-monotonic"),
    ("dmesg", "--raw"),
    ("dmesg",),
)
DRIVER = re.compile(r"NVRM:|\bnvidia(?:-[a-z]+)*[: ]")
STAMP = re.compile(r"\[\s*(\d+\.\d+)\]")
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)")


def probe_gpu_log() -> GpuLogFacts:
    """Read the log by the first program that shows a driver in it."""
    reasons: list[str] = []
    for command in READERS:
        try:
            text = ask(command, TIMEOUT_S)
        except (UnsupportedError, IncompleteError, TimedOutError) as error:
            reasons.append(str(error))
            continue
        if DRIVER.search(text):
            return GpuLogFacts(source=command[0], xids=parse_xids(text, uptime_s()))
        reasons.append(f"{command[0]} shows no NVIDIA driver: it may be another kernel's log")
    raise IncompleteError("; ".join(dict.fromkeys(reasons)))


def uptime_s() -> float:
    """Seconds on the clock of the kernel's log."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def parse_xids(log: str, now_s: float) -> tuple[XidFacts, ...]:
    """Errors in the order of the log. A line without a time counts as of now."""
    found = ((line, XID.search(line)) for line in log.splitlines())
    return tuple(
        XidFacts(code=int(match[2]), pci_bus_id=match[1], age_s=_age(line, now_s))
        for line, match in found
        if match
    )


def _age(line: str, now_s: float) -> float:
    stamp = STAMP.search(line)
    return max(0.0, round(now_s - float(stamp[1]), 1)) if stamp else 0.0
