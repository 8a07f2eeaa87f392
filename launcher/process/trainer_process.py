"""Trainer process: command line, environment, start and wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.process.child_start import RUN_RANK, log_path, signal_at_parent_death
from launcher.process.compile_cache import compile_cache_environment
from neobert.config.schema import RunConfig
from neobert.errors import ERROR_FILE_ENV

TRAINER_MODULE = "neobert.train"
# Packages that it imports before its first step, which takes seconds; the others are those of its graphs.
TRAINER_PACKAGES = ("neobert.training.loop.session", "pydantic")  # the second reads the receipt
COMPILER_PACKAGES = ("torch._inductor.compile_fx",)
CUDA_GRAPH_PACKAGES = ("torch._dynamo.backends.common", "torch._inductor.cudagraph_trees")
# Makes the trainer resume from its own newest checkpoint.
AGAIN = "--again"
AGENT_LOG = "torchrun.log"
# torchrun's rendezvous that respects --node-rank; all others assign ranks themselves.
STATIC_RENDEZVOUS = "static"
POLL_S = 0.25
# Threads that spin at a barrier make a CPU run up to twenty times slower when another job takes a core.
DEFAULT_VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE"}
# Variables by which an outer torchrun, srun or mpirun describes its own processes. A single process of this
# launch would apply them to itself, and wait for ranks that never come.
OUTER_RANK_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Processes of this node and their rendezvous, with the names of torchrun's options."""

    nproc_per_node: int = 1
    nnodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_endpoint: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def needs_torchrun(self) -> bool:
        """Return whether there are several processes, or options for torchrun."""
        return self.nproc_per_node * self.nnodes > 1 or bool(self.extra)

    @property
    def is_numbered(self) -> bool:
        """Return whether torchrun uses the given node ranks, which is the default."""
        return last_option_value(self.extra, "rdzv-backend") in ("", STATIC_RENDEZVOUS)

    @property
    def ranks(self) -> range:
        """Global ranks of this node; all ranks of the run if torchrun assigns them."""
        if not self.is_numbered:
            return range(self.nproc_per_node * self.nnodes)
        first = (self.node_rank or 0) * self.nproc_per_node
        return range(first, first + self.nproc_per_node)


def trainer_packages(config: RunConfig) -> tuple[str, ...]:
    """Return the packages to import early, because the trainer needs them before its first step."""
    compilers = COMPILER_PACKAGES if config.trainer.torch_compile else ()
    graphs = CUDA_GRAPH_PACKAGES if config.trainer.cuda_graphs else ()
    return (*TRAINER_PACKAGES, *compilers, *graphs)


def last_option_value(arguments: Sequence[str], name: str) -> str:
    """Return the last value of an option in torchrun's arguments; empty if there is none."""
    value = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        option, equals, own = argument.partition("=")
        if option.replace("_", "-") == f"--{name}":
            value = own if equals else following
    return value


def trainer_command(resolved: Path, logs: Path, topology: Topology) -> list[str]:
    """Return the command that trains the config file `resolved`, with torchrun if the topology needs it."""
    trainer = [sys.executable, "-m", TRAINER_MODULE, str(resolved)]
    if not topology.needs_torchrun:
        return trainer
    torchrun = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(topology), *topology.extra]
    return [*torchrun, *RUN_RANK, str(logs), *trainer]


def _torchrun_options(topology: Topology) -> list[str]:
    options = ["--nproc-per-node", str(topology.nproc_per_node), "--nnodes", str(topology.nnodes)]
    rendezvous = {
        "--node-rank": topology.node_rank,
        "--master-addr": topology.master_addr,
        "--master-port": topology.master_port,
        "--rdzv-endpoint": topology.rdzv_endpoint,
    }
    given = {name: str(value) for name, value in rendezvous.items() if value is not None}
    if topology.nnodes > 1:
        options += ["--rdzv-backend", STATIC_RENDEZVOUS]
    elif topology.rdzv_endpoint:
        options += ["--rdzv-backend", "c10d"]
    if not given and topology.nnodes == 1:
        return [*options, "--standalone"]
    return options + [word for pair in given.items() for word in pair]


def child_environment(
    error_file: Path, ranks: int = 1, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a child: this process's, without the rank variables of an outer launcher.

    PYTHONSAFEPATH keeps modules in the current folder from shadowing the project's.

    Args:
        ranks: processes of this node, which share its cores; torchrun's default is one core per process.
        more: further variables for the child.
    """
    ours = {ERROR_FILE_ENV: str(error_file), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    cores = max(1, len(os.sched_getaffinity(0)) // ranks)
    shared = {"OMP_NUM_THREADS": str(cores)} if ranks > 1 else {}
    inherited = {name: value for name, value in os.environ.items() if name not in OUTER_RANK_VARIABLES}
    return {**DEFAULT_VARIABLES, **shared, **compile_cache_environment(), **inherited, **ours, **(more or {})}


def start_trainer_process(
    command: Sequence[str],
    log: Path,
    error_file: Path,
    keep_open: Sequence[int] = (),
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the trainer in its own session, so that Ctrl-C reaches it only once, through the launcher.

    Args:
        log: file to which its output is appended.
        keep_open: file descriptors that it inherits.
        ranks: number of ranks, which share the cores.
        environment: variables that take precedence over `child_environment`'s.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(error_file, ranks, environment),
            start_new_session=True,
            pass_fds=tuple(keep_open),
            preexec_fn=signal_at_parent_death(signal.SIGTERM, os.getpid()),
        )


def process_log(topology: Topology, logs: Path) -> Path:
    """Return the path of the started process's log: rank 0's, or torchrun's if torchrun is needed."""
    if not topology.needs_torchrun:
        return log_path(logs, 0)
    return logs / (f"torchrun_{topology.node_rank}.log" if topology.node_rank else AGENT_LOG)


def wait_for_child(child: subprocess.Popen[bytes], on_tick: Callable[[], None]) -> int:
    """Wait for a child and return its exit code, negative for a signal; call `on_tick` meanwhile."""
    while True:
        try:
            return child.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            on_tick()
