"""Training of several points at the same time, each by a launcher with its own devices and cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.commands import train
from launcher.commands.selection import VISIBLE_ENV
from launcher.commands.sweep_results import Candidate
from launcher.commands.sweep_runs import (
    STOPPED,
    PointQueue,
    log_how_to_continue,
    record_result_of_launch,
    train_in_turn,
)
from launcher.probes.gpus import probe_gpus
from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from launcher.process.child_start import signal_at_parent_death
from launcher.process.signal_forwarding import Forwarder, handle_signals
from launcher.rundir.records import file_stamp, last_lines
from launcher.terminal import console
from neobert.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_TRAINING_FAILED,
    EXIT_USAGE,
    ProjectError,
)
from neobert.plurals import counted
from neobert.printable import printable
from neobert.runfiles.run_dir import MANIFEST
from profiles.registry import ResolvedRun

POLL_S = 0.1
TAIL_BYTES, TAIL_LINES = 4096, 12

OPTION = "--parallel"

LAUNCHER = (sys.executable, "-m", __name__.partition(".")[0])


@dataclass(frozen=True, slots=True)
class ChildLaunch:
    """A point that is training, and the process that launched it.

    Attributes:
        before: stamp of the manifest before the launch.
    """

    candidate: Candidate
    slot: DeviceSlot
    process: subprocess.Popen[bytes]
    log: Path
    before: tuple[int, int] | None


class ParallelTraining:
    """Training of queued points at the same time, with one launcher per device slot."""

    def __init__(
        self,
        points: PointQueue,
        request: train.TrainRequest,
        slots: Sequence[DeviceSlot],
        forwarder: SiblingForwarder,
    ) -> None:
        self._points, self._request, self._forwarder = points, request, forwarder
        self._free, self._running = [*slots], list[ChildLaunch]()
        self._is_exhausted, self._is_stopping = False, False
        self.code = EXIT_OK

    def train(self) -> None:
        """Train points on all slots until none is left; after an error, stop and wait for all launchers."""
        try:
            self._start_on_free_slots()
            while self._running:
                self._forwarder.print_new()
                for launch in self._pop_ended():
                    self._record_end(launch)
                self._start_on_free_slots()
                time.sleep(POLL_S)
        finally:
            self._forwarder.stop()
            for launch in self._running:
                launch.process.wait()

    def _start_on_free_slots(self) -> None:
        while self._free and not (self._is_exhausted or self._is_stopping or self._forwarder.seen):
            candidate = self._points.next_point()
            if candidate is None:
                self._is_exhausted = True
                return
            launch = self._start_point(candidate, self._free.pop(0))
            self._running.append(launch)
            self._forwarder.adopt(launch.process)

    def _start_point(self, candidate: Candidate, slot: DeviceSlot) -> ChildLaunch:
        log = candidate.folder.with_name(f"{candidate.folder.name}.log")
        before = file_stamp(candidate.folder / MANIFEST)
        visible = {VISIBLE_ENV: ",".join(slot.devices)} if slot.devices else {}
        console.log(printable(f"log: {log}"))
        words = point_arguments(candidate, self._request)
        return ChildLaunch(candidate, slot, start_launcher(words, log, visible, slot.cores), log, before)

    def _pop_ended(self) -> Iterator[ChildLaunch]:
        for launch in [each for each in self._running if each.process.poll() is not None]:
            self._running.remove(launch)
            self._free.append(launch.slot)
            yield launch

    def _record_end(self, launch: ChildLaunch) -> None:
        """Record how a launcher ended; if it was stopped, stop the others too."""
        code = launch.process.returncode
        if code < 0:
            was_requested = self._is_stopping or self._forwarder.seen
            code = EXIT_PREEMPTED if was_requested else EXIT_TRAINING_FAILED
        is_started = record_result_of_launch(self._points, launch.candidate, code, launch.before)
        ending = "finished" if code == EXIT_OK else f"exit code {code}"
        text = "" if is_started else f"\n{_last_log_line(launch.log)}"
        console.log(printable(f"{launch.candidate.point.label}: {ending}{text}", keep="\n"))
        self.code = self.code or code
        if code in STOPPED and not (self._is_stopping or self._forwarder.seen):
            self.code, self._is_stopping = code, True
            self._forwarder.stop()


def train_points(
    points: PointQueue, request: train.TrainRequest, output_format: str, slots: Sequence[DeviceSlot]
) -> int:
    """Train points in parallel on the slots, or one after another if there are no slots.

    Returns the exit code of the first point that failed, or of the stop.
    """
    if not slots:
        return train_in_turn(points, request, output_format)
    team = ParallelTraining(points, request, slots, forwarder := SiblingForwarder())
    with handle_signals(forwarder):
        team.train()
    seen = forwarder.seen
    code = (EXIT_INTERRUPTED if signal.SIGINT in seen else EXIT_PREEMPTED) if seen else team.code
    if code in STOPPED:
        log_how_to_continue()
    return code


def slots_for(run: ResolvedRun, request: train.TrainRequest, parallel: int | None) -> list[DeviceSlot]:
    """Return the device slots of points that train at the same time; empty if --parallel is not set.

    Raises ProjectError if the points would share a GPU or a rendezvous.
    """
    topology = request.topology
    if parallel and (topology.master_addr or topology.master_port or topology.rdzv_endpoint):
        message = "a rendezvous endpoint serves one launch, but --parallel starts several"
        raise ProjectError(
            "sweep", message, "leave out --rdzv-endpoint, --master-addr and --master-port", OPTION, EXIT_USAGE
        )
    return make_slots(run, parallel) if parallel else []


def point_arguments(candidate: Candidate, request: train.TrainRequest) -> list[str]:
    """Return the command line that launches one point."""
    words = ["train", *candidate.selection.as_arguments()]
    words += ["--strict"] * request.strict + ["--verbose"] * request.verbose + ["--quiet"] * request.quiet
    words += ["--unguarded", request.unguarded] if request.unguarded else []
    words += ["--stages", ",".join(map(str, request.stages))] if request.stages else []
    return [*words, "--", *request.topology.extra] if request.topology.extra else words


def _last_log_line(log: Path) -> str:
    lines = [line.decode(errors="replace") for line in last_lines(log, TAIL_BYTES)]
    return "\n".join(lines[-TAIL_LINES:])


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Devices and cores of one point.

    Attributes:
        devices: identifiers for CUDA_VISIBLE_DEVICES; empty for a run on the CPU.
    """

    devices: tuple[str, ...]
    cores: tuple[int, ...]


def make_slots(run: ResolvedRun, parallel: int) -> list[DeviceSlot]:
    """Return one slot of devices and cores for each of `parallel` points.

    Raises ProjectError if there are fewer GPUs than they need.
    """
    devices = () if run.device == "cpu" else _visible_gpus()
    each = run.config.distributed.nproc_per_node if devices or run.device == "cuda" else 0
    return divide_into_slots(devices, each, sorted(os.sched_getaffinity(0)), parallel)


def divide_into_slots(
    devices: Sequence[str], devices_per_slot: int, cores: Sequence[int], parallel: int
) -> list[DeviceSlot]:
    """Divide devices and cores into slots that share none; with fewer cores than slots, each gets all cores.

    Raises ProjectError if there are too few devices.

    Args:
        devices_per_slot: number of devices of each slot.
    """
    if parallel * devices_per_slot > len(devices):
        visible = counted(len(devices), "visible GPU") if devices else "no visible GPU"
        needed = f"{counted(devices_per_slot, 'GPU')} for each of {counted(parallel, 'point')}"
        message = f"--parallel needs {needed}, but this machine has {visible}"
        most = len(devices) // devices_per_slot
        hint = f"pass {OPTION} {most}" if most else f"leave out {OPTION}, or check CUDA_VISIBLE_DEVICES"
        raise ProjectError("sweep", message, hint, OPTION, EXIT_USAGE)
    share = len(cores) // parallel
    return [
        DeviceSlot(
            devices=tuple(devices[index * devices_per_slot : (index + 1) * devices_per_slot]),
            cores=tuple(cores[index * share : (index + 1) * share] or cores),
        )
        for index in range(parallel)
    ]


def _visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the visible GPUs, because CUDA may number GPUs in another order than the driver.

    Raises ProjectError if the driver does not respond.
    """
    try:
        return tuple(gpu.uuid for gpu in probe_gpus())
    except UnsupportedError:
        return ()
    except (IncompleteError, TimedOutError) as error:
        raise ProjectError(
            "sweep", f"the GPUs cannot be listed: {error}", "run nvidia-smi", OPTION, EXIT_CHECK_FAILED
        ) from None


class SiblingForwarder(Forwarder):
    """Forwarder of signals to several launchers, which each count the signals they receive."""

    def __init__(self) -> None:
        super().__init__()
        self.children: list[subprocess.Popen[bytes]] = []
        self.keep_for_trainer(has_agent=False)

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Forward signals to this child too, starting with the last one received before its start."""
        self.children.append(child)
        if self.seen:
            child.send_signal(self.seen[-1])

    def stop(self) -> None:
        """Ask all points to save and stop."""
        self._handle_signal(signal.SIGTERM)

    def _handle_signal(self, number: int) -> None:
        for child in self.children:
            child.send_signal(number)


def start_launcher(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], cores: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a launcher on some cores, in its own session, so that Ctrl-C reaches it through this one only.

    If this launcher is killed, the kernel sends SIGTERM to the child, which saves and stops.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [*LAUNCHER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_pin_to_cores(cores, signal_at_parent_death(signal.SIGTERM, os.getpid())),
        )


def _pin_to_cores(cores: Sequence[int], prepare_further: Callable[[], None]) -> Callable[[], None]:
    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        prepare_further()

    return prepare
