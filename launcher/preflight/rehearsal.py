"""Rehearsal of a run in child processes: start, supervision, comparison."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from launcher.preflight.rehearsal_facts import facts_of
from launcher.probes.gpus import NONE_VISIBLE, probe_gpus
from launcher.probes.probe import IncompleteError, Subject, TimedOutError, UnsupportedError, nearest_existing
from launcher.process.process_tree import kill_family, mortal
from launcher.process.trainer_process import start
from launcher.process.waiting_child import WaitingChild, waiting
from launcher.rundir.records import Record, last_beat, read_json
from launcher.rundir.stalls import Watchdog
from launcher.terminal.activity import announce
from neobert.config import digest, to_dict
from neobert.config.schema import WatchdogConfig
from neobert.errors import read_error_file
from neobert.receipt import FILE_NAME as RECEIPT
from validators.facts_gpu import GpuFacts
from validators.facts_rehearsal import RehearsalFacts, WatchdogFacts

MODULE = "neobert.rehearsal"
FRESH, RESUMED, FOLDER = "fresh", "resumed", "run"
PARTS = (FRESH, RESUMED, RESUMED)
FACTS = "facts.json"
REHEARSAL_S = 570.0
MARGIN_S = 15.0
POLL_S = 0.05
STALL_S, BEAT_S = 2.0, 0.5
STALL_PATIENCE = 10
LIMITS = WatchdogConfig(
    start_limit_s=STALL_S,
    compile_limit_s=STALL_S,
    step_limit_s=STALL_S,
    data_wait_limit_s=STALL_S,
    evaluation_limit_s=STALL_S,
    save_limit_s=STALL_S,
    heartbeat_interval_s=BEAT_S,
)
"""Shorten the timeouts of the watchdog: those of a run, half an hour, are too long for a rehearsal."""
BYTES_PER_MIB = 2**20
TAIL_LINES = 3
DIVERGED = ("NAN001", "SPK001")


class DivergedError(Exception):
    """A run that stopped itself because of a loss that is not finite or a loss spike."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Folder and deadline of a rehearsal.

    Attributes:
        folder: on the file system that the run will write to; removed afterwards.
        ranks: processes of this node.
        deadline_s: monotonic.
        waiting: processes that have imported their packages, one for each part of a single rank.
    """

    folder: Path
    ranks: int
    deadline_s: float
    waiting: Iterator[WaitingChild] = field(default_factory=lambda: iter(()))

    @property
    def resolved(self) -> Path:
        """The config as requested."""
        return self.folder / "resolved.json"

    @property
    def log(self) -> Path:
        """Log of the children."""
        return self.folder / "log"

    @property
    def error_file(self) -> Path:
        """Error file of a failed child."""
        return self.folder / "error.json"

    def result(self, name: str, rank: int) -> Path:
        """Return the file that a rank writes when it is done."""
        return self.folder / f"{name}_rank{rank}.json"


def probe_rehearsal(subject: Subject) -> RehearsalFacts:
    """Rehearse the run here. Raises IncompleteError or TimedOutError saying how far it came."""
    gpus = probe_gpus() if subject.requires_gpu else _gpus()
    if subject.requires_gpu and not gpus:
        raise UnsupportedError(NONE_VISIBLE)
    started_s = time.monotonic()
    try:
        found = _rehearse(subject, gpus, started_s)
    except DivergedError as error:
        return _diverged(subject, gpus, str(error), time.monotonic() - started_s)
    return replace(found, baseline_tokens_per_second=earlier_pace(subject, found.device_name))


@contextmanager
def waiting_children(subject: Subject) -> Iterator[Sequence[WaitingChild]]:
    """Start a process for each part of a rehearsal of one rank; several ranks are started by torchrun."""
    parts = PARTS if subject.config.distributed.nproc_per_node == 1 else ()
    with ExitStack() as ends:
        yield [ends.enter_context(waiting(MODULE, subject.config)) for _ in parts]


def _rehearse(subject: Subject, gpus: Sequence[GpuFacts], started_s: float) -> RehearsalFacts:
    ranks, before = subject.config.distributed.nproc_per_node, {gpu.uuid: gpu for gpu in gpus}
    with scratch(subject) as folder:
        stage = Stage(folder, ranks, started_s + REHEARSAL_S, iter(subject.children))
        stage.resolved.write_text(json.dumps(to_dict(subject.config)), encoding="utf-8")
        with performing(stage, FRESH) as (fresh, _):
            outside = seen_from_outside(fresh[0], before)
        leave_out_others(fresh, before)
        if any(rank.get("out_of_memory") for rank in fresh):
            return facts_of(fresh, [], outside, None, ranks, time.monotonic() - started_s)
        with performing(stage, RESUMED) as (first, _):
            pass
        with performing(stage, RESUMED) as (second, child):
            watchdog = watch_stall(stage, child)
    return facts_of(fresh, [first, second], outside, watchdog, ranks, time.monotonic() - started_s)


def _diverged(subject: Subject, gpus: Sequence[GpuFacts], because: str, duration_s: float) -> RehearsalFacts:
    """Return the facts of a rehearsal whose run stopped itself."""
    return RehearsalFacts(
        device="cuda" if gpus else "cpu",
        device_name=gpus[0].name if gpus else "",
        num_ranks=subject.config.distributed.nproc_per_node,
        duration_s=round(duration_s, 2),
        diverged=because,
    )


@contextmanager
def scratch(subject: Subject) -> Iterator[Path]:
    """Make a folder on the disk that checkpoints will go to, and remove it afterwards."""
    parent = nearest_existing(subject.output_dir.parent)
    ours = f".rehearsal-{socket.gethostname()}-"
    remove_abandoned(parent, ours)
    prefix = f"{ours}{os.getpid()}-"
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise IncompleteError(f"cannot create a folder in {parent}: {error.strerror}") from None
    with made as folder:
        yield Path(folder)


def remove_abandoned(parent: Path, ours: str) -> None:
    """Remove what launchers of this host left that were killed; another host's name may begin alike."""
    for folder in parent.glob(f"{ours}*"):
        pid, _, random = folder.name.removeprefix(ours).partition("-")
        if pid.isdecimal() and "-" not in random and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def earlier_pace(subject: Subject, device_name: str) -> float | None:
    """Return the tokens/s of an earlier rehearsal of the same config on such a device, if there is one."""
    beside = [] if subject.diff_file is None else [subject.diff_file.parent]
    for folder in (*beside, subject.output_dir):
        found = read_json(folder / FACTS).get("rehearsal") or {}
        is_same = read_json(folder / RECEIPT).get("config_digest") == digest(subject.config)
        if is_same and found.get("speed") and found.get("device_name") == device_name:
            return float(found["speed"]["tokens_per_second"])
    return None


@contextmanager
def performing(stage: Stage, name: str) -> Iterator[tuple[list[Record], subprocess.Popen[bytes]]]:
    """Start the ranks and wait for their results; kill them at the end of the block."""
    for rank in range(stage.ranks):
        stage.result(name, rank).unlink(missing_ok=True)
    child = _start(stage, name)
    try:
        with mortal(child):
            _wait(stage, name, child)
            yield [read_json(stage.result(name, rank)) for rank in range(stage.ranks)], child
    finally:
        kill_family(child)


def _start(stage: Stage, name: str) -> subprocess.Popen[bytes]:
    """Start the next process that waits, or new ones where there is none."""
    words = [name, str(stage.resolved), str(stage.folder)]
    started = (child.start(words, stage.log, stage.error_file) for child in stage.waiting)
    if child := next(filter(None, started), None):
        return child
    command = [sys.executable, "-P", "-m", MODULE, *words]
    if stage.ranks > 1:
        torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, "--nproc-per-node", str(stage.ranks), "-m", MODULE, *words]
    return start(command, stage.log, stage.error_file, ranks=stage.ranks)


def _wait(stage: Stage, name: str, child: subprocess.Popen[bytes]) -> None:
    """Wait until every rank has written its result, or one is out of memory; announce the progress."""
    announced = ""
    while not _is_done(stage, name):
        if child.poll() is not None and not _is_done(stage, name):
            raise _ended_early(stage, child)
        if time.monotonic() > stage.deadline_s:
            raise TimedOutError(
                f"the rehearsal took over {REHEARSAL_S:g} s and was killed at: {_where(stage)}"
            )
        where = _where(stage)
        if where != announced:
            announce(f"rehearsal: {where}")
            announced = where
        time.sleep(POLL_S)


def _ended_early(stage: Stage, child: subprocess.Popen[bytes]) -> Exception:
    """Return the error for children that ended early: a run that stops because of its loss is a result."""
    error = read_error_file(stage.error_file)
    if error is not None and error.code in DIVERGED:
        return DivergedError(f"{error.message} [{error.code}]")
    return IncompleteError(f"the rehearsal ended at: {_where(stage)}; {_last_words(stage, child)}")


def _is_done(stage: Stage, name: str) -> bool:
    results = [stage.result(name, rank) for rank in range(stage.ranks)]
    there = [path for path in results if path.exists()]
    return len(there) == len(results) or any(read_json(path).get("out_of_memory") for path in there)


def _where(stage: Stage) -> str:
    with suppress(OSError):
        return (stage.folder / "stage_rank0").read_text(encoding="utf-8") or "starting"
    return "starting"


def _last_words(stage: Stage, child: subprocess.Popen[bytes]) -> str:
    error = read_error_file(stage.error_file)
    if error is not None:
        parts = (f"{error.message} [{error.code}]", error.place, error.hint)
        return "; ".join(filter(None, parts))
    lines = stage.log.read_text(encoding="utf-8", errors="replace").split("\n")
    tail = [line.strip() for line in lines if line.strip()][-TAIL_LINES:]
    return " / ".join([f"exit {child.returncode}", *tail])


def _gpus() -> Sequence[GpuFacts]:
    try:
        return probe_gpus()
    except (UnsupportedError, IncompleteError, TimedOutError):
        return ()


def leave_out_others(ranks: Sequence[Record], before: Mapping[str, GpuFacts]) -> None:
    """Count to a rank's context only its own, or what was not in use on its device before."""
    for rank in ranks:
        if rank.get("memory") and not rank.get("is_own_context"):
            others_mib = _used_mib(before.get(rank.get("gpu_uuid", "")))
            rank["memory"]["context_mib"] = max(0, rank["memory"]["context_mib"] - others_mib)


def _used_mib(gpu: GpuFacts | None) -> int:
    return 0 if gpu is None else gpu.memory_used_mib


def seen_from_outside(result: Record, before: Mapping[str, GpuFacts]) -> dict[str, Any]:
    """Read a rank's memory from the driver and the operating system while the rank is paused."""
    uuid, pid = result.get("gpu_uuid", ""), result.get("pid")
    rss_mib = None
    if pid is not None:
        with suppress(psutil.Error):
            rss_mib = psutil.Process(pid).memory_info().rss / BYTES_PER_MIB
    gpu = next((each for each in (_gpus() if uuid else ()) if each.uuid == uuid), None)
    taken_mib, reason = (None, "") if gpu is None else _taken(gpu, pid, before.get(uuid))
    return {"system_rss_mib": rss_mib, "driver_mib": taken_mib, "driver_reason": reason}


def _taken(gpu: GpuFacts, pid: int | None, before: GpuFacts | None) -> tuple[int | None, str]:
    """Return the driver's memory of the process, or the increase since before; or the reason for neither."""
    for process in gpu.processes or ():
        if process.pid == pid and process.memory_mib is not None:
            return process.memory_mib, ""
    if _others_changed(gpu, pid, before):
        return None, "other processes came to the device, left it, or took another share of it meanwhile"
    return gpu.memory_used_mib - _used_mib(before), ""


def _others_changed(gpu: GpuFacts, pid: int | None, before: GpuFacts | None) -> bool:
    """Return whether other processes changed; in a container the driver may list none, or other PIDs."""
    there, earlier = set(gpu.processes or ()), set((before and before.processes) or ())
    is_listed = any(process.pid == pid for process in there)
    newcomers = [process for process in there - earlier if process.pid != pid]
    return bool(earlier - there) or len(newcomers) > (0 if is_listed else 1)


def watch_stall(stage: Stage, child: subprocess.Popen[bytes]) -> WatchdogFacts:
    """Watch a hanging child with the run's own watchdog, and kill it after its timeout."""
    folder, ranks = stage.folder / FOLDER, range(stage.ranks)
    watchdog = Watchdog(LIMITS, {rank: {} for rank in ranks}, time.monotonic())
    limit_s = time.monotonic() + STALL_PATIENCE * STALL_S
    while time.monotonic() < limit_s and child.poll() is None:
        stall = watchdog.look({rank: last_beat(folder, rank) for rank in ranks}, time.monotonic())
        if stall is not None:
            return WatchdogFacts(
                budget_s=stall.limit_s, detected_s=round(stall.silence_s, 2), survivors=kill_family(child)
            )
        time.sleep(POLL_S)
    return WatchdogFacts(budget_s=STALL_S + BEAT_S, detected_s=None, survivors=kill_family(child))
