"""Sessions as processes of their own that begin in milliseconds: forked from one that has imported it all.

Only a process without other threads may do so, which a test runner is not: the scripts beside this file are.
"""

import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

# What a session imports as it goes is imported here, once.
import neobert.training.loop.session  # noqa: F401
from neobert import train


def begin(
    run_dir: Path, rank: int = 0, size: int = 1, port: int = 0, prepare: Callable[[], None] | None = None
) -> int:
    """Begin a session, or one rank of it; return its process id. What it prints goes to `log_RANK` beside it.

    Args:
        prepare: what the new process does first, such as planting a fault.
    """
    gc.freeze()  # the child's collections then go over what it makes, and copy nothing else
    pid = os.fork()
    if pid:
        return pid
    log = os.open(run_dir / f"log_{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if size > 1:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {name: str(value) for name, value in world.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if prepare is not None:
        prepare()
    code = train.main([str(run_dir / "resolved.json")])
    sys.stdout.flush()
    os._exit(code)


def end(pid: int) -> int:
    """Wait for a session; return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ended_within(pid: int, seconds: float) -> int | None:
    """Wait for a session for some time; None where it still runs."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def run_ranks(
    run_dir: Path, size: int, prepare: Callable[[], None] | None = None, prepared: int = -1
) -> list[int]:
    """Run a session of several ranks, one of them prepared (the last); return their exit codes."""
    port = free_port()
    faults: list[Callable[[], None] | None] = [None] * size
    faults[prepared] = prepare
    return [end(pid) for pid in [begin(run_dir, rank, size, port, faults[rank]) for rank in range(size)]]


def free_port() -> int:
    """Return a port on which the ranks of a session can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
