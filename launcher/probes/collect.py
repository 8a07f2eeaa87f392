"""Run the probes: light ones side by side, heavy ones one after the other. One that hangs is left behind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from launcher.probes.child import kill_living
from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from validators.facts import Facts, ProbeRecord

# What a probe needs to remove what it has made, once its child is gone.
TIDYING_S = 5.0
LOOK_EVERY_S = 0.05
Ended = tuple[Probe, ProbeRecord, Any]
Status = Literal["ok", "unsupported", "incomplete", "timeout"]
STATUS_OF: dict[type[Exception], Status] = {
    UnsupportedError: "unsupported",
    IncompleteError: "incomplete",
    TimedOutError: "timeout",
}


def collect(
    probes: Sequence[Probe], subject: Subject, announce: Callable[[str], None] | None = None
) -> Facts:
    """Measure every group of facts; a group whose probe failed is None and its record says why.

    Args:
        announce: told of every heavy probe before it starts.
    """
    ended = {probe.group: (record, found) for probe, record, found in _all(probes, subject, announce)}
    records = [ended[probe.group][0] for probe in probes]
    groups = {group: found for group, (_, found) in ended.items() if found is not None}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return replace(Facts(recorded_utc=now, probes=tuple(records)), **groups)


def _all(
    probes: Sequence[Probe], subject: Subject, announce: Callable[[str], None] | None
) -> Iterator[Ended]:
    """Memory in use and processes on a device are looked at before a heavy probe adds its own."""
    yield from _race([probe for probe in probes if not probe.is_heavy], subject)
    for probe in probes:
        if probe.is_heavy:
            if announce:
                announce(f"measuring {probe.group.replace('_', ' ')}")
            yield from _race([probe], subject)


def _race(probes: Sequence[Probe], subject: Subject) -> Iterator[Ended]:
    results: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    # Daemons: a thread stuck in a dead file system must not keep the process alive.
    threads = [
        threading.Thread(target=lambda p=probe: results.put(_measure(p, subject)), daemon=True)
        for probe in probes
    ]
    try:
        for thread in threads:
            thread.start()
        yield from _answers(probes, results)
    except BaseException:
        _abandon(threads)
        raise


def _abandon(threads: Sequence[threading.Thread]) -> None:
    """Kill what the probes wait for, and whatever they start then, while they remove what they have made."""
    until_s = time.monotonic() + TIDYING_S
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until_s:
        kill_living()
        time.sleep(LOOK_EVERY_S)


def _answers(probes: Sequence[Probe], results: queue.SimpleQueue[Ended]) -> Iterator[Ended]:
    started = time.monotonic()
    waiting = {probe.group: probe for probe in probes}
    while waiting:
        first_s = min(probe.deadline_s for probe in waiting.values())
        try:
            left_s = max(0.0, started + first_s - time.monotonic())
            probe, record, found = results.get(timeout=left_s)
        except queue.Empty:
            late = [probe for probe in waiting.values() if probe.deadline_s <= first_s]
            for probe in late:
                del waiting[probe.group]
                yield probe, _late(probe), None
            continue
        if waiting.pop(probe.group, None):
            yield probe, record, found


def _late(probe: Probe) -> ProbeRecord:
    reason = f"no answer within {probe.deadline_s:g} s"
    return ProbeRecord(name=probe.group, status="timeout", reason=reason, duration_s=probe.deadline_s)


def _measure(probe: Probe, subject: Subject) -> Ended:
    started = time.monotonic()
    status: Status = "ok"
    found, reason = None, ""
    try:
        found = probe.measure(subject)
    except Exception as error:  # whatever a probe meets, the group is unknown and never a pass
        known = STATUS_OF.get(type(error))
        status, reason = known or "incomplete", str(error) if known else f"{type(error).__name__}: {error}"
    duration_s = round(time.monotonic() - started, 4)
    return probe, ProbeRecord(name=probe.group, status=status, reason=reason, duration_s=duration_s), found
