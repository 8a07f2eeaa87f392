"""The trainer's process: its command, its signals, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from launcher.parent import dying_with_parent
from launcher.rank_log import log_path
from neobert.errors import ERROR_FILE_ENV

TRAINER_MODULE = "neobert.train"
# Has the trainer go on from its own newest checkpoint.
AGAIN = "--again"
AGENT_LOG = "torchrun.log"
# A scheduler's word, its early warning, a terminal that closes: save and stop.
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PATIENCE = 2
POLL_S = 0.25
# Threads that spin at a barrier for one that lost its core slow a CPU run twenty-fold beside another job.
POLITE = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Processes of this node and how they find the others, in torchrun's words."""

    nproc_per_node: int = 1
    nnodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_endpoint: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def needs_torchrun(self) -> bool:
        """Whether there is more than one process, or something was said to torchrun."""
        return self.nproc_per_node * self.nnodes > 1 or bool(self.extra)


def trainer_command(resolved: Path, logs: Path, topology: Topology) -> list[str]:
    """The argument list that trains `resolved`; one process needs no torchrun."""
    trainer = [sys.executable, "-m", TRAINER_MODULE, str(resolved)]
    if not topology.needs_torchrun:
        return trainer
    torchrun = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(topology), *topology.extra]
    return [*torchrun, "-m", "launcher.rank_log", str(logs), *trainer]


def _torchrun_options(topology: Topology) -> list[str]:
    options = ["--nproc-per-node", str(topology.nproc_per_node), "--nnodes", str(topology.nnodes)]
    meeting = {
        "--node-rank": topology.node_rank,
        "--master-addr": topology.master_addr,
        "--master-port": topology.master_port,
        "--rdzv-endpoint": topology.rdzv_endpoint,
    }
    given = {name: str(value) for name, value in meeting.items() if value is not None}
    if topology.rdzv_endpoint:
        options += ["--rdzv-backend", "c10d"]
    if not given and topology.nnodes == 1:
        return [*options, "--standalone"]
    return options + [word for pair in given.items() for word in pair]


def child_environment(
    error_file: Path, ranks: int = 1, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """This environment and where to leave an error; no module of the current folder hides the project's.

    Args:
        ranks: processes of this node, which share its cores; torchrun would give each of several one core.
        more: what else the child is told.
    """
    ours = {ERROR_FILE_ENV: str(error_file), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    shared = {"OMP_NUM_THREADS": str(cores)} if ranks > 1 else {}
    return {**POLITE, **shared, **os.environ, **ours, **(more or {})}


def start(
    command: Sequence[str],
    log: Path,
    error_file: Path,
    keep_open: Sequence[int] = (),
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the trainer in a session of its own, so that a Ctrl-C reaches it once, through us."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(error_file, ranks, environment),
            start_new_session=True,
            pass_fds=tuple(keep_open),
            preexec_fn=dying_with_parent(signal.SIGTERM),
        )


def log_of(topology: Topology, logs: Path) -> Path:
    """Where the output of the process that we start goes; ranks under torchrun have their own logs."""
    if not topology.needs_torchrun:
        return log_path(logs, 0)
    return logs / (f"torchrun_{topology.node_rank}.log" if topology.node_rank else AGENT_LOG)


class Forwarder:
    """Passes signals on to the workers. Ctrl-C is the trainer's to answer twice; the third one kills it."""

    def __init__(self, child: subprocess.Popen[bytes] | None, has_agent: bool) -> None:
        self.child = child
        self.has_agent = has_agent
        self.seen: list[int] = []

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Forward one signal; the trainer knows SIGTERM for all that ask it to save and stop."""
        self.seen.append(number)
        self._pass_on(number)

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Forward to this child from now on, and what came before there was one."""
        self.child = child
        if self.seen:
            self._pass_on(self.seen[-1])

    def _pass_on(self, number: int) -> None:
        wanted = signal.SIGTERM if number in STOPS else number
        self._send(wanted if self.seen.count(signal.SIGINT) <= PATIENCE else signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.child is None:
            return
        if self.has_agent:
            # torchrun would end its workers within seconds of a signal of its own: a save may take longer.
            targets = self._workers(self.child)
            for worker in targets:
                with suppress(psutil.Error):
                    worker.send_signal(number)
            if not targets or number == signal.SIGKILL:
                self.child.send_signal(number)
        elif self.child.poll() is None:
            with suppress(ProcessLookupError):  # it may have been reaped below this handler
                os.killpg(self.child.pid, number)

    def _workers(self, child: subprocess.Popen[bytes]) -> list[psutil.Process]:
        try:
            descendants = psutil.Process(child.pid).children(recursive=True)
        except psutil.Error:
            return []
        return [process for process in descendants if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    """Whether it trains. One that has just ended says nothing, and must not hide the others."""
    try:
        return TRAINER_MODULE in process.cmdline()
    except psutil.Error:
        return False


class StoppedEarlyError(BaseException):
    """A scheduler ends the job, and there is no trainer yet. No probe may take it for a fault of its own."""


def _stop_early(_number: int, _frame: FrameType | None) -> NoReturn:
    raise StoppedEarlyError


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Answer signals while the block runs; a closed terminal that is ignored (`nohup`) stays so."""
    has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    heard = [number for number in numbers if number != signal.SIGHUP or has_terminal]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stopping_early() -> Iterator[None]:
    """Let a scheduler's signals end the block at once, until there is a trainer to pass them on to."""
    with _handled(STOPS, _stop_early):
        yield


@contextmanager
def forwarding(child: subprocess.Popen[bytes] | None, has_agent: bool) -> Iterator[Forwarder]:
    """Forward signals while the block runs; afterwards they mean what they meant before.

    A child may come later, and another one after it.
    """
    forwarder = Forwarder(child, has_agent)
    with _handled((signal.SIGINT, *STOPS), forwarder):
        yield forwarder


def wait(child: subprocess.Popen[bytes], on_tick: Callable[[], None]) -> int:
    """Wait for the end, and look at the run between. Returns the child's code, negative for a signal."""
    while True:
        try:
            return child.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            on_tick()
