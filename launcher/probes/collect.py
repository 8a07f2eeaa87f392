"""Collection of facts: light probes in parallel, then heavy probes; a probe that hangs is abandoned."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from launcher.process.process_tree import kill_waited_for
from validators.facts import Facts, ProbeRecord
from validators.facts_config import measured_for

# Time for a probe to remove its temporary files after its child was killed.
CLEANUP_S = 5.0
POLL_S = 0.05
Ended = tuple[Probe, ProbeRecord, Any]
Status = Literal["ok", "unsupported", "incomplete", "timeout"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Deadline of a probe (monotonic seconds), its time limit, and its current activity."""

    probe: Probe
    until_s: float
    limit_s: float
    doing: str = ""


Results = queue.SimpleQueue[Ended | Wait]
STATUS_OF: dict[type[Exception], Status] = {
    UnsupportedError: "unsupported",
    IncompleteError: "incomplete",
    TimedOutError: "timeout",
}


def collect(
    probes: Sequence[Probe],
    subject: Subject,
    announce: Callable[[str], None] | None = None,
    before_heavy: Callable[[], object] = lambda: None,
) -> Facts:
    """Run the probes and return the facts; the group of a failed probe is None, with a reason in `probes`.

    Args:
        announce: called before every heavy probe, and when a probe requests more time.
        before_heavy: called after the light probes, which would measure its effects otherwise.
    """
    all_ended = _all(probes, subject, announce, before_heavy)
    ended = {probe.group: (record, found) for probe, record, found in all_ended}
    records = [ended[probe.group][0] for probe in probes]
    groups = {group: found for group, (_, found) in ended.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = Facts(recorded_utc=now, measured_for=measured_for(subject.config), probes=tuple(records))
    return replace(found, **groups)


def _all(
    probes: Sequence[Probe],
    subject: Subject,
    announce: Callable[[str], None] | None,
    before_heavy: Callable[[], object],
) -> Iterator[Ended]:
    """Run all probes and yield their results, heavy probes last.

    Heavy probes change the memory use and the processes of devices, which light probes report.
    """
    light = [probe for probe in probes if not probe.is_heavy]
    groups = _groups([probe for probe in probes if probe.is_heavy])
    with ExitStack() as ends:
        children = {
            probe.group: ends.enter_context(probe.children(subject)) for probe in probes if probe.children
        }
        found: dict[str, Any] = {}
        for writes in (False, True):
            for ended in _race([probe for probe in light if probe.writes == writes], subject, announce):
                found[ended[0].group] = ended[2]
                yield ended
        subject = replace(subject, gpus=found.get("gpus"))
        before_heavy()
        for number, group in enumerate(groups, start=1):
            if announce:
                names = ", ".join(probe.group.replace("_", " ") for probe in group)
                announce(f"measuring {names} ({number} of {len(groups)})")
            waiting = [child for probe in group for child in children.get(probe.group, ())]
            yield from _until_alone(group, replace(subject, children=waiting), announce)


def _groups(heavy: Sequence[Probe]) -> list[list[Probe]]:
    """Group the heavy probes that run at the same time; a probe that measures time runs alone.

    The first probe that measures time may start together with the others if it waits for their end before it
    measures.
    """
    together = [probe for probe in heavy if not probe.measures_time]
    alone = [probe for probe in heavy if probe.measures_time]
    if together and alone and alone[0].waits_until_alone:
        together.append(alone.pop(0))
    return [group for group in (together, *([probe] for probe in alone)) if group]


def _until_alone(
    group: Sequence[Probe], subject: Subject, announce: Callable[[str], None] | None
) -> Iterator[Ended]:
    """Run a group, and set `is_alone` once only the probe that waits for the others is running."""
    others = {probe.group for probe in group if not probe.waits_until_alone}
    subject = replace(subject, is_alone=threading.Event())
    if not others:
        subject.is_alone.set()
    for ended in _race(group, subject, announce):
        others.discard(ended[0].group)
        if not others:
            subject.is_alone.set()
        yield ended


def _race(
    probes: Sequence[Probe], subject: Subject, announce: Callable[[str], None] | None
) -> Iterator[Ended]:
    results: Results = queue.SimpleQueue()
    # Daemons: a thread stuck in a dead file system must not keep the process alive.
    threads = [
        threading.Thread(target=_work, args=(probe, subject, results), daemon=True) for probe in probes
    ]
    try:
        for thread in threads:
            thread.start()
        yield from _answers(probes, results, announce)
    except BaseException:
        _abandon(threads)
        raise


def _work(probe: Probe, subject: Subject, results: Results) -> None:
    """Run one probe; put its requests for more time, and then its result, into `results`."""

    def request_time(limit_s: float, what: str) -> None:
        results.put(Wait(probe, time.monotonic() + limit_s, limit_s, what))

    results.put(_measure(probe, replace(subject, request_time=request_time)))


def _abandon(threads: Sequence[threading.Thread]) -> None:
    """Kill the child processes of abandoned probes until their threads end, for at most `CLEANUP_S`."""
    until_s = time.monotonic() + CLEANUP_S
    while any(thread.is_alive() for thread in threads) and time.monotonic() < until_s:
        kill_waited_for()
        time.sleep(POLL_S)


def _answers(
    probes: Sequence[Probe], results: Results, announce: Callable[[str], None] | None
) -> Iterator[Ended]:
    started_s = time.monotonic()
    waits = {probe.group: Wait(probe, started_s + probe.deadline_s, probe.deadline_s) for probe in probes}
    while waits:
        first_s = min(wait.until_s for wait in waits.values())
        try:
            reported = results.get(timeout=max(0.0, first_s - time.monotonic()))
        except queue.Empty:
            for wait in [wait for wait in waits.values() if wait.until_s <= first_s]:
                del waits[wait.probe.group]
                yield wait.probe, _late(wait, started_s), None
            continue
        if isinstance(reported, Wait):
            _prolong(waits, reported, announce)
        elif waits.pop(reported[0].group, None):
            yield reported


def _prolong(waits: dict[str, Wait], wait: Wait, announce: Callable[[str], None] | None) -> None:
    """Extend the deadline of a probe that is still running, and announce its activity."""
    if wait.probe.group in waits:
        waits[wait.probe.group] = wait
        if announce:
            announce(wait.doing)


def _late(wait: Wait, started_s: float) -> ProbeRecord:
    what = f": {wait.doing}" if wait.doing else ""
    reason = f"no answer within {round(wait.limit_s, 1):g} s{what}"
    duration_s = round(wait.until_s - started_s, 4)
    return ProbeRecord(name=wait.probe.group, status="timeout", reason=reason, duration_s=duration_s)


def _measure(probe: Probe, subject: Subject) -> Ended:
    started = time.monotonic()
    status: Status = "ok"
    found, reason = None, ""
    try:
        found = probe.measure(subject)
    except Exception as error:  # any error makes the group unknown, never a pass
        known = STATUS_OF.get(type(error))
        status, reason = known or "incomplete", str(error) if known else f"{type(error).__name__}: {error}"
    duration_s = round(time.monotonic() - started, 4)
    return probe, ProbeRecord(name=probe.group, status=status, reason=reason, duration_s=duration_s), found
