"""Process trees: lookup of ranks, stack dumps, termination of all descendants and of orphaned ranks."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock, Thread

import psutil

from launcher.process import trainer_process
from neobert.runfiles.run_dir import DUMP_SIGNAL, stacks_path

REAPING_S, STARTING_S = 2.0, 2.0
_starting = Lock()
_living: set[subprocess.Popen[bytes]] = set()
DUMP_TIMEOUT_S = 3.0
POLL_S = 0.05
NO_TRACE = "no stack was written: the process has ended, or is blocked in the kernel on a device\n"
KILL_TIMEOUT_S = 3.0
AGENT = "torch.distributed.run"
# torchrun sets this for its ranks. A trainer without it holds the lock of the run directory.
STARTED_BY_AGENT = "TORCHELASTIC_RUN_ID"


def kill_tree(child: subprocess.Popen[bytes]) -> int:
    """Kill a child and all its descendants, in any session; return how many survived.

    A process that hangs in the driver survives even SIGKILL, and is not waited for.
    """
    family = process_tree(child)
    kill_all(family)
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=REAPING_S)
    return len(psutil.wait_procs(family, timeout=REAPING_S)[1])


def kill_without_wait(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and all its descendants without waiting for their end; a thread reaps the child.

    A driver takes seconds to free the memory of a killed process.
    """
    kill_all(process_tree(child))
    Thread(target=child.wait, daemon=True).start()


@contextmanager
def kill_at_exit(start: Callable[[], subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child process, and kill it if the launcher exits inside the `with` block.

    Ctrl-C does not reach the child, because it runs in its own session.
    """
    with _starting:
        child = start()
        _living.add(child)
    try:
        yield child
    finally:
        _living.discard(child)


def kill_registered_children() -> None:
    """Kill all children that were started with `kill_at_exit` and are still in use."""
    for child in tuple(_living):
        kill_all(process_tree(child))


@atexit.register
def _block_and_kill_children() -> None:
    """Wait for a child that a thread is just starting, block further starts, and kill all children."""
    _starting.acquire(timeout=STARTING_S)  # never released
    kill_registered_children()


def kill_all(family: Sequence[psutil.Process]) -> None:
    """Kill the processes that still exist."""
    for process in family:
        with suppress(psutil.Error):
            process.kill()


def process_tree(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a child and all its descendants, in any session; empty if the child is gone."""
    try:
        parent = psutil.Process(child.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def find_workers(child: subprocess.Popen[bytes], *, has_agent: bool) -> dict[int, psutil.Process]:
    """Return the running training processes by rank; with `has_agent`, the child itself is torchrun."""
    workers: dict[int, psutil.Process] = {}
    for each in process_tree(child)[has_agent:]:  # torchrun's command line contains the trainer's module too
        with suppress(psutil.Error, ValueError):
            if trainer_process.TRAINER_MODULE in each.cmdline():
                workers.setdefault(int(each.environ().get("RANK", "0")), each)
    return workers


def dump_stacks(workers: Mapping[int, psutil.Process], folder: Path, why: str) -> list[Path]:
    """Make every rank write the stacks of its threads, wait briefly for them, and return the files.

    A stopped process is continued for this and runs its handler first. It gets SIGTERM before that, so that
    it does not continue beyond the step in which it was stopped.
    """
    files = {rank: stacks_path(folder, rank) for rank in workers}
    heading = f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {why}\n"
    before = {rank: _append(file, heading) for rank, file in files.items()}
    for each in workers.values():
        with suppress(psutil.Error):
            each.send_signal(DUMP_SIGNAL)
            # Signals queue up while a process is stopped. SIGTERM must be pending before it continues.
            if each.status() == psutil.STATUS_STOPPED:
                each.terminate()
                each.send_signal(signal.SIGCONT)
    deadline_s = time.monotonic() + DUMP_TIMEOUT_S
    sizes, unfinished = before, set(files)
    while unfinished and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        earlier, sizes = sizes, {rank: path.stat().st_size for rank, path in files.items()}
        # faulthandler writes in pieces: a dump is complete once it no longer grows, at the end of a line.
        unfinished = {
            rank
            for rank, path in files.items()
            if sizes[rank] == before[rank] or sizes[rank] > earlier[rank] or not _ends_with_newline(path)
        }
    for rank in files:
        if sizes[rank] <= before[rank]:
            _append(files[rank], NO_TRACE)
    return list(files.values())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)  # a file of stacks has a heading at least
        return file.read() == b"\n"


def _append(path: Path, text: str) -> int:
    with path.open("ab") as file:
        file.write(text.encode())
        return file.tell()


def stop_then_kill(
    child: subprocess.Popen[bytes], workers: Mapping[int, psutil.Process], grace_s: float
) -> None:
    """Ask the workers to stop, wait up to `grace_s`, then kill all descendants of the child.

    The process tree is looked up first, because torchrun ends its other ranks once one is killed.
    """

    family = [each for each in process_tree(child) if each.pid != child.pid]
    for each in workers.values():
        with suppress(psutil.Error):
            each.terminate()
    psutil.wait_procs([each for each in workers.values() if each in family], timeout=grace_s)
    if not family:
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    kill_tree(child)
    kill_all(family)
    psutil.wait_procs(family, timeout=DUMP_TIMEOUT_S)


def stop_orphaned_ranks(resolved: Path, grace_s: float) -> tuple[int, int]:
    """Stop ranks whose torchrun has ended; return their number, and how many survived.

    Ranks are found by the path of their resolved config. They may save first, within `grace_s`. A rank that
    survives hangs in the kernel and occupies its device.
    """
    orphans = [each for each in psutil.process_iter() if _is_orphan(each, str(resolved))]
    for each in orphans:
        with suppress(psutil.Error):
            each.terminate()
    alive = psutil.wait_procs(orphans, timeout=grace_s)[1]
    for each in alive:
        with suppress(psutil.Error):
            each.kill()
    return len(orphans), len(psutil.wait_procs(alive, timeout=KILL_TIMEOUT_S)[1])


def _is_orphan(candidate: psutil.Process, resolved: str) -> bool:
    try:
        arguments = candidate.cmdline()
        if trainer_process.TRAINER_MODULE not in arguments or resolved not in arguments or AGENT in arguments:
            return False
        parent = candidate.parent()
        has_agent = parent is not None and AGENT in parent.cmdline()
        return not has_agent and STARTED_BY_AGENT in candidate.environ()
    except psutil.Error:  # it has just ended, or belongs to another user
        return False
