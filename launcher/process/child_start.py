"""Set-up of a child process before its own program: killed when its parent ends, with redirected output.

Usage: python -m launcher.process.child_start module MODULE ARGUMENTS...
       python -m launcher.process.child_start rank LOG_DIR COMMAND...      (torchrun starts this per rank)
       python -m launcher.process.child_start waiting SOCKET MODULE PACKAGE...
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_INTERRUPTED
from neobert.gc_policy import collect_rarely

PR_SET_PDEATHSIG = 1
THIS_MODULE = __spec__.name
RUN_MODULE = ("-m", THIS_MODULE, "module")
RUN_RANK = ("-m", THIS_MODULE, "rank")
RUN_WAITING = ("-m", THIS_MODULE, "waiting")
MAX_MESSAGE_BYTES, MAX_FILES = 1 << 16, 16
READY = b"1"
STDOUT = 1


def signal_at_parent_death(number: int, parent: int | None = None) -> Callable[[], None]:
    """Return a function that makes the kernel send this signal when the parent ends.

    A parent that is killed with SIGKILL cannot forward a signal to its child. With the process id of the
    parent, the function also sends the signal if the parent has already ended.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)

    return arrange


def log_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's log in the log folder."""
    return folder / f"rank_{rank}.log"


def run_module(module: str, arguments: list[str]) -> None:
    """Run a module as `__main__` until it ends or the parent does; Ctrl-C exits without a traceback."""
    # A background job of a shell inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal_at_parent_death(signal.SIGINT)()
    if is_abandoned():
        sys.exit(EXIT_INTERRUPTED)
    collect_rarely()
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def is_abandoned() -> bool:
    """Return whether the parent has ended, so that nothing reads the pipe on standard output."""
    output = select.poll()
    output.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def run_rank(folder: Path, command: list[str]) -> None:
    """Redirect both streams to the log of the rank, and exec its command, which then receives all signals.

    If torchrun is killed, the kernel sends SIGTERM to the ranks, which then save and stop.
    """
    signal_at_parent_death(signal.SIGTERM)()
    path = log_path(folder, int(os.environ.get("RANK", "0")))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.execv(command[0], command)


def run_waiting(channel: int, module: str, packages: Sequence[str]) -> None:
    """Import packages, wait for arguments on a socket, then run the module; end if the socket is closed.

    The message with the arguments also has environment variables, a log for both streams, and descriptors to
    keep open. A warm-up message may come first: this process then calls `main` of another module and waits
    again.
    """
    signal_at_parent_death(signal.SIGTERM)()
    collect_rarely()
    for package in packages:
        import_module(package)
    with socket.socket(fileno=channel) as parent:
        order = receive_message(parent)
        while order is not None and "warm_up" in order:
            import_module(order["warm_up"]).main(order["arguments"])
            parent.send(READY)
            order = receive_message(parent)
    if order is None:
        return
    sys.argv = [module, *order["arguments"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def receive_message(parent: socket.socket) -> dict[str, Any] | None:
    """Wait for a message, apply its environment variables and log, and return it.

    Returns None if the socket is closed.
    """
    message, files, _, _ = socket.recv_fds(parent, MAX_MESSAGE_BYTES, MAX_FILES)
    if not message:
        return None
    order: dict[str, Any] = json.loads(message)
    os.environ.update(order["environment"])
    for stream in (sys.stdout, sys.stderr):
        os.dup2(files[0], stream.fileno())
    os.close(files[0])
    return order


if __name__ == "__main__":
    _, kind, first, *rest = sys.argv
    if kind == "rank":
        run_rank(Path(first), rest)
    elif kind == "waiting":
        run_waiting(int(first), rest[0], rest[1:])
    else:
        run_module(first, rest)
