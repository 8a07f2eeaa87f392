"""Training of several points at the same time, each by a launcher with its own devices and cores."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.commands import train
from launcher.commands.selection import VISIBLE_ENV
from launcher.commands.sweep_results import Candidate
from launcher.commands.sweep_runs import STOPPED, Points, log_how_to_continue, record, train_in_turn
from launcher.process.child_launcher import SiblingForwarder, start
from launcher.process.signal_forwarding import handling
from launcher.run.point_slots import OPTION, Slot, slots_of
from launcher.rundir.records import last_lines, stamp
from launcher.terminal import console
from neobert.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    EXIT_USAGE,
    ProjectError,
)
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST
from profiles.registry import ResolvedRun

POLL_S = 0.1
TAIL_BYTES, TAIL_LINES = 4096, 12


@dataclass(frozen=True, slots=True)
class ChildLaunch:
    """A point that is training.

    Attributes:
        before: stamp of the manifest before the launch.
    """

    candidate: Candidate
    slot: Slot
    process: subprocess.Popen[bytes]
    log: Path
    before: tuple[int, int] | None


class Team:
    """Launchers that train points at the same time."""

    def __init__(
        self, points: Points, request: train.Request, slots: Sequence[Slot], forwarder: SiblingForwarder
    ) -> None:
        self._points, self._request, self._forwarder = points, request, forwarder
        self._free, self._running = [*slots], list[ChildLaunch]()
        self._is_exhausted, self._is_stopping = False, False
        self.code = EXIT_OK

    def train(self) -> None:
        """Train a point on each slot until none is left; no launcher is left behind, also after an error."""
        try:
            self._hand_out()
            while self._running:
                self._forwarder.print_new()
                for launch in self._ended():
                    self._record(launch)
                self._hand_out()
                time.sleep(POLL_S)
        finally:
            self._forwarder.stop()
            for launch in self._running:
                launch.process.wait()

    def _hand_out(self) -> None:
        while self._free and not (self._is_exhausted or self._is_stopping or self._forwarder.seen):
            candidate = self._points.next()
            if candidate is None:
                self._is_exhausted = True
                return
            launch = self._start(candidate, self._free.pop(0))
            self._running.append(launch)
            self._forwarder.adopt(launch.process)

    def _start(self, candidate: Candidate, slot: Slot) -> ChildLaunch:
        log = candidate.folder.with_name(f"{candidate.folder.name}.log")
        before = stamp(candidate.folder / MANIFEST)
        visible = {VISIBLE_ENV: ",".join(slot.devices)} if slot.devices else {}
        console.log(printable(f"log: {log}"))
        words = arguments_of(candidate, self._request)
        return ChildLaunch(candidate, slot, start(words, log, visible, slot.cores), log, before)

    def _ended(self) -> Iterator[ChildLaunch]:
        for launch in [each for each in self._running if each.process.poll() is not None]:
            self._running.remove(launch)
            self._free.append(launch.slot)
            yield launch

    def _record(self, launch: ChildLaunch) -> None:
        """Record how a launcher ended; one that was stopped stops the others too."""
        code = launch.process.returncode
        if code < 0:
            was_asked = self._is_stopping or self._forwarder.seen
            code = EXIT_PREEMPTED if was_asked else EXIT_TRAINING_FAILED
        is_started = record(self._points, launch.candidate, code, launch.before)
        ending = "finished" if code == EXIT_OK else f"exit code {code}"
        text = "" if is_started else f"\n{_tail(launch.log)}"
        console.log(printable(f"{launch.candidate.point.label}: {ending}{text}", keep="\n"))
        self.code = self.code or code
        if code in STOPPED and not (self._is_stopping or self._forwarder.seen):
            self.code, self._is_stopping = code, True
            self._forwarder.stop()


def train_points(points: Points, request: train.Request, output_format: str, slots: Sequence[Slot]) -> int:
    """Train points on slots at the same time, or one after another without; return the exit code.

    It is that of the first point that failed, or of the stop.
    """
    if not slots:
        return train_in_turn(points, request, output_format)
    team = Team(points, request, slots, forwarder := SiblingForwarder())
    with handling(forwarder):
        team.train()
    seen = forwarder.seen
    code = (EXIT_INTERRUPTED if signal.SIGINT in seen else EXIT_PREEMPTED) if seen else team.code
    if code in STOPPED:
        log_how_to_continue()
    return code


def slots_for(run: ResolvedRun, request: train.Request, parallel: int | None) -> list[Slot]:
    """Return the slots of points that train at the same time; none without --parallel.

    Raises ProjectError if the points would share a GPU or a rendezvous.
    """
    topology = request.topology
    if parallel and (topology.master_addr or topology.master_port or topology.rdzv_endpoint):
        message = "a rendezvous endpoint is that of one launch, but --parallel starts several"
        raise ProjectError(
            "sweep", message, "leave out --rdzv-endpoint, --master-addr and --master-port", OPTION, EXIT_USAGE
        )
    return slots_of(run, parallel) if parallel else []


def arguments_of(candidate: Candidate, request: train.Request) -> list[str]:
    """Return the command line of the launch of one point."""
    words = ["train", *candidate.selection.as_arguments()]
    words += ["--strict"] * request.strict + ["--verbose"] * request.verbose + ["--quiet"] * request.quiet
    words += ["--unguarded", request.unguarded] if request.unguarded else []
    words += ["--stages", ",".join(map(str, request.stages))] if request.stages else []
    return [*words, "--", *request.topology.extra] if request.topology.extra else words


def _tail(log: Path) -> str:
    lines = [line.decode(errors="replace") for line in last_lines(log, TAIL_BYTES)]
    return "\n".join(lines[-TAIL_LINES:])
