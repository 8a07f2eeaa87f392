"""Collection of facts: light probes, then heavy probes, in parallel; a probe that hangs is abandoned."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from launcher.probes.probe import IncompleteError, Probe, Subject, TimedOutError, UnsupportedError
from launcher.process.process_tree import kill_registered_children
from launcher.process.waiting_child import WaitingChild
from validators.facts import Facts, ProbeRecord
from validators.facts_config import measured_for

# Time for a probe to remove its temporary files after its child was killed.
CLEANUP_S = 5.0
POLL_S = 0.05
Ended = tuple[Probe, ProbeRecord, Any]
Status = Literal["ok", "unsupported", "incomplete", "timeout"]


@dataclass(frozen=True, slots=True)
class RunningProbe:
    """Start and deadline of a probe (monotonic seconds), its time limit, and its current activity."""

    probe: Probe
    started_s: float
    until_s: float
    limit_s: float
    doing: str = ""


Results = queue.SimpleQueue[Ended | RunningProbe]
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
        announce: called when a heavy probe starts, and when a probe requests more time.
        before_heavy: called between the light and the heavy probes; light probes would measure its effects.
    """
    all_ended = _run_all(probes, subject, announce, before_heavy)
    ended = {probe.group: (record, measured) for probe, record, measured in all_ended}
    records = [ended[probe.group][0] for probe in probes]
    groups = {group: measured for group, (_, measured) in ended.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts = Facts(recorded_utc=now, measured_for=measured_for(subject.config), probes=tuple(records))
    return replace(facts, **groups)


def _run_all(
    probes: Sequence[Probe],
    subject: Subject,
    announce: Callable[[str], None] | None,
    before_heavy: Callable[[], object],
) -> Iterator[Ended]:
    """Run all probes and yield their results, heavy probes last.

    Heavy probes change the memory use and the processes of devices, which light probes report.
    """
    light = [probe for probe in probes if not probe.is_heavy]
    heavy = [probe for probe in probes if probe.is_heavy]
    with ExitStack() as ends:
        children = {
            probe.group: ends.enter_context(probe.children(subject)) for probe in probes if probe.children
        }
        measured: dict[str, Any] = {}
        for writes in (False, True):
            concurrent = ConcurrentProbes(
                [probe for probe in light if probe.writes == writes], subject, announce
            )
            for ended in concurrent.run():
                measured[ended[0].group] = ended[2]
                yield ended
        if heavy:
            before_heavy()
            yield from ConcurrentProbes(
                heavy, replace(subject, gpus=measured.get("gpus")), announce, children
            ).run()


class ConcurrentProbes:
    """Probes that run at the same time; each starts when the probes in its `after` have ended."""

    def __init__(
        self,
        probes: Sequence[Probe],
        subject: Subject,
        announce: Callable[[str], None] | None,
        children: Mapping[str, Sequence[WaitingChild]] | None = None,
    ) -> None:
        self._pending, self._num_probes = list(probes), len(probes)
        self._subject, self._announce = replace(subject, is_alone=threading.Event()), announce
        self._children = children or {}
        self._results: Results = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waits: dict[str, RunningProbe] = {}

    def run(self) -> Iterator[Ended]:
        """Run the probes, and yield the result of each when it ends or exceeds its time limit."""
        try:
            while self._start_ready():
                yield from self._next_results()
        except BaseException:
            self._kill_abandoned_children()
            raise

    def _start_ready(self) -> bool:
        unfinished = {probe.group for probe in self._pending} | self._waits.keys()
        ready = [probe for probe in self._pending if unfinished.isdisjoint(probe.after)]
        self._pending = [probe for probe in self._pending if probe not in ready]
        running = [*(wait.probe for wait in self._waits.values()), *ready]
        if all(probe.waits_until_alone for probe in (*running, *self._pending)):
            self._subject.is_alone.set()
        if ready and ready[0].is_heavy and self._announce:
            names = ", ".join(probe.group.replace("_", " ") for probe in running)
            self._announce(
                f"measuring {names} ({self._num_probes - len(unfinished)} of {self._num_probes} done)"
            )
        for probe in ready:
            self._start_probe(probe)
        return bool(running)

    def _start_probe(self, probe: Probe) -> None:
        now_s = time.monotonic()
        self._waits[probe.group] = RunningProbe(probe, now_s, now_s + probe.deadline_s, probe.deadline_s)
        # A daemon: a thread stuck in a dead file system must not keep the process alive.
        self._threads.append(threading.Thread(target=self._run_probe, args=(probe, now_s), daemon=True))
        self._threads[-1].start()

    def _run_probe(self, probe: Probe, started_s: float) -> None:
        """Run one probe; put its requests for more time, and then its result, into the queue."""

        def request_time(limit_s: float, what: str) -> None:
            self._results.put(RunningProbe(probe, started_s, time.monotonic() + limit_s, limit_s, what))

        children = self._children.get(probe.group, ())
        self._results.put(
            _measure_and_record(probe, replace(self._subject, request_time=request_time, children=children))
        )

    def _next_results(self) -> Iterator[Ended]:
        """Wait for a result, a request for more time, or the next time limit; yield the results.

        A probe that exceeds its time limit yields a record with status `timeout`.
        """
        first_s = min(wait.until_s for wait in self._waits.values())
        try:
            reported = self._results.get(timeout=max(0.0, first_s - time.monotonic()))
        except queue.Empty:
            for wait in [wait for wait in self._waits.values() if wait.until_s <= first_s]:
                del self._waits[wait.probe.group]
                yield wait.probe, _timeout_record(wait), None
            return
        if isinstance(reported, RunningProbe):
            self._extend_deadline(reported)
        elif self._waits.pop(reported[0].group, None):
            yield reported

    def _extend_deadline(self, wait: RunningProbe) -> None:
        if wait.probe.group in self._waits:
            self._waits[wait.probe.group] = wait
            if self._announce:
                self._announce(wait.doing)

    def _kill_abandoned_children(self) -> None:
        """Kill the child processes of abandoned probes until their threads end, for at most `CLEANUP_S`."""
        until_s = time.monotonic() + CLEANUP_S
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until_s:
            kill_registered_children()
            time.sleep(POLL_S)


def _timeout_record(wait: RunningProbe) -> ProbeRecord:
    what = f": {wait.doing}" if wait.doing else ""
    reason = f"no answer within {round(wait.limit_s, 1):g} s{what}"
    duration_s = round(wait.until_s - wait.started_s, 4)
    return ProbeRecord(name=wait.probe.group, status="timeout", reason=reason, duration_s=duration_s)


def _measure_and_record(probe: Probe, subject: Subject) -> Ended:
    started = time.monotonic()
    status: Status = "ok"
    measured, reason = None, ""
    try:
        measured = probe.measure(subject)
    except Exception as error:  # any error makes the group unknown, never a pass
        known = STATUS_OF.get(type(error))
        status, reason = known or "incomplete", str(error) if known else f"{type(error).__name__}: {error}"
    duration_s = round(time.monotonic() - started, 4)
    return probe, ProbeRecord(name=probe.group, status=status, reason=reason, duration_s=duration_s), measured
