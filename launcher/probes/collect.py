"""Run the probes side by side under one deadline. A probe that hangs is left behind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from launcher.probes.probe import IncompleteError, Probe, Subject, UnsupportedError
from validators.facts import Facts, ProbeRecord

DEADLINE_S = 10.0

Ended = tuple[Probe, ProbeRecord, Any]


def collect(probes: Sequence[Probe], subject: Subject, deadline_s: float = DEADLINE_S) -> Facts:
    """Measure every group of facts; a group whose probe failed is None and its record says why."""
    ended = {probe.group: (record, found) for probe, record, found in _race(probes, subject, deadline_s)}
    records = [ended[probe.group][0] for probe in probes]
    groups = {group: found for group, (_, found) in ended.items() if found is not None}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return replace(Facts(recorded_utc=now, probes=tuple(records)), **groups)


def _race(probes: Sequence[Probe], subject: Subject, deadline_s: float) -> Iterator[Ended]:
    results: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    started = time.monotonic()
    for probe in probes:
        # A daemon: a thread stuck in a dead file system must not keep the process alive.
        threading.Thread(target=lambda p=probe: results.put(_measure(p, subject)), daemon=True).start()
    waiting = {probe.group: probe for probe in probes}
    while waiting:
        try:
            left_s = max(0.0, started + deadline_s - time.monotonic())
            probe, record, found = results.get(timeout=left_s)
        except queue.Empty:
            break
        del waiting[probe.group]
        yield probe, record, found
    for probe in waiting.values():
        reason = f"no answer within {deadline_s:g} s"
        yield (
            probe,
            ProbeRecord(name=probe.group, status="timeout", reason=reason, duration_s=deadline_s),
            None,
        )


def _measure(probe: Probe, subject: Subject) -> Ended:
    started = time.monotonic()
    status: Literal["ok", "unsupported", "incomplete"] = "ok"
    found, reason = None, ""
    try:
        found = probe.measure(subject)
    except UnsupportedError as error:
        status, reason = "unsupported", str(error)
    except Exception as error:  # whatever a probe meets, the group is unknown and never a pass
        known = isinstance(error, IncompleteError)
        status, reason = "incomplete", str(error) if known else f"{type(error).__name__}: {error}"
    duration_s = round(time.monotonic() - started, 4)
    return probe, ProbeRecord(name=probe.group, status=status, reason=reason, duration_s=duration_s), found
