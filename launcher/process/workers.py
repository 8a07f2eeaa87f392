"""Training processes of this node: lookup, stack dumps and termination."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from launcher.process import trainer_process
from launcher.process.process_tree import family_of, kill_all, kill_family
from neobert.runfiles.stack_dumps import SIGNAL as DUMP_SIGNAL
from neobert.runfiles.stack_dumps import stacks_path

DUMP_PATIENCE_S = 3.0
POLL_S = 0.05
NO_TRACE = "no stack was written: the process is gone, or waits for a device inside the kernel\n"


def workers_of(child: subprocess.Popen[bytes], has_agent: bool) -> dict[int, psutil.Process]:
    """Return the training processes by rank, without those that have just ended."""
    workers: dict[int, psutil.Process] = {}
    for each in family_of(child)[has_agent:]:  # torchrun's command line contains the trainer's module too
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
    before = {rank: _open_chapter(files[rank], why) for rank in workers}
    for each in workers.values():
        with suppress(psutil.Error):
            each.send_signal(DUMP_SIGNAL)
            # Signals queue up while a process is stopped. SIGTERM must be pending before it continues.
            if each.status() == psutil.STATUS_STOPPED:
                each.terminate()
                each.send_signal(signal.SIGCONT)
    deadline_s = time.monotonic() + DUMP_PATIENCE_S
    missing = set(files)
    while missing and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        missing = {rank for rank in missing if files[rank].stat().st_size <= before[rank]}
    for rank in missing:
        _append(files[rank], NO_TRACE)
    return list(files.values())


def _open_chapter(path: Path, why: str) -> int:
    """Append a heading with time and reason, and return the size of the file after it."""
    return _append(path, f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {why}\n")


def _append(path: Path, text: str) -> int:
    with path.open("ab") as file:
        file.write(text.encode())
        return file.tell()


def end(child: subprocess.Popen[bytes], workers: Mapping[int, psutil.Process], grace_s: float) -> None:
    """Ask the workers to stop, wait up to `grace_s`, then kill all descendants of the child.

    torchrun ends its other ranks after one is killed, so the process tree is looked up before.
    """

    family = [each for each in family_of(child) if each.pid != child.pid]
    for each in workers.values():
        with suppress(psutil.Error):
            each.terminate()
    psutil.wait_procs([each for each in workers.values() if each in family], timeout=grace_s)
    if not family:
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    kill_family(child)
    kill_all(family)
    psutil.wait_procs(family, timeout=DUMP_PATIENCE_S)
