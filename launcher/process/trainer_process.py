"""The trainer's process: its command, its start, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.process.parent_death import dying_with_parent
from launcher.process.rank_log import log_path
from neobert.errors import ERROR_FILE_ENV

TRAINER_MODULE = "neobert.train"
# Has the trainer go on from its own newest checkpoint.
AGAIN = "--again"
AGENT_LOG = "torchrun.log"
# torchrun's rendezvous that goes by --node-rank: any other numbers nodes whatever they were told.
HEEDS_NUMBERS = "static"
POLL_S = 0.25
# Threads that spin at a barrier for one that lost its core slow a CPU run twenty-fold beside another job.
POLITE = {"OMP_WAIT_POLICY": "PASSIVE"}
# What torchrun, srun or mpirun around this launch says of processes of its own: a single process of ours
# would take it for itself, and wait for ranks that never come.
RANKS_AROUND = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
}  # fmt: skip


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

    @property
    def is_numbered(self) -> bool:
        """Whether torchrun goes by the nodes' numbers, unless it was told otherwise."""
        return said(self.extra, "rdzv-backend") in ("", HEEDS_NUMBERS)

    @property
    def ranks(self) -> range:
        """The global ranks of this node; all of the run's where nobody knows which these are."""
        if not self.is_numbered:
            return range(self.nproc_per_node * self.nnodes)
        first = (self.node_rank or 0) * self.nproc_per_node
        return range(first, first + self.nproc_per_node)


def said(words: Sequence[str], name: str) -> str:
    """What torchrun was told last under this name, in its own words; empty for nothing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, equals, own = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            value = own if equals else following
    return value


def trainer_command(resolved: Path, logs: Path, topology: Topology) -> list[str]:
    """The argument list that trains `resolved`; one process needs no torchrun."""
    trainer = [sys.executable, "-m", TRAINER_MODULE, str(resolved)]
    if not topology.needs_torchrun:
        return trainer
    torchrun = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(topology), *topology.extra]
    return [*torchrun, "-m", "launcher.process.rank_log", str(logs), *trainer]


def _torchrun_options(topology: Topology) -> list[str]:
    options = ["--nproc-per-node", str(topology.nproc_per_node), "--nnodes", str(topology.nnodes)]
    meeting = {
        "--node-rank": topology.node_rank,
        "--master-addr": topology.master_addr,
        "--master-port": topology.master_port,
        "--rdzv-endpoint": topology.rdzv_endpoint,
    }
    given = {name: str(value) for name, value in meeting.items() if value is not None}
    if topology.nnodes > 1:
        options += ["--rdzv-backend", HEEDS_NUMBERS]
    elif topology.rdzv_endpoint:
        options += ["--rdzv-backend", "c10d"]
    if not given and topology.nnodes == 1:
        return [*options, "--standalone"]
    return options + [word for pair in given.items() for word in pair]


def child_environment(
    error_file: Path, ranks: int = 1, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """This environment and where to leave an error; no module of the current folder hides the project's.

    Who is which rank is for us and torchrun to say: what the environment says of it is left out.

    Args:
        ranks: processes of this node, which share its cores; torchrun would give each of several one core.
        more: what else the child is told.
    """
    ours = {ERROR_FILE_ENV: str(error_file), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    shared = {"OMP_NUM_THREADS": str(cores)} if ranks > 1 else {}
    inherited = {name: value for name, value in os.environ.items() if name not in RANKS_AROUND}
    return {**POLITE, **shared, **inherited, **ours, **(more or {})}


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


def wait(child: subprocess.Popen[bytes], on_tick: Callable[[], None]) -> int:
    """Wait for the end, and look at the run between. Returns the child's code, negative for a signal."""
    while True:
        try:
            return child.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            on_tick()
