"""The processes that train on this node: who they are, where they hang, how they are ended."""

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
    """The training processes by rank; one that has just ended is not among them."""
    found: dict[int, psutil.Process] = {}
    for each in family_of(child)[has_agent:]:  # an agent names the trainer's module too
        with suppress(psutil.Error, ValueError):
            if trainer_process.TRAINER_MODULE in each.cmdline():
                found.setdefault(int(each.environ().get("RANK", "0")), each)
    return found


def dump_stacks(workers: Mapping[int, psutil.Process], folder: Path, why: str) -> list[Path]:
    """Have every rank write the stacks of its threads, and wait a moment for it; return the files.

    A stopped process is woken for it, and runs the handler before anything else; it is asked to end
    before it wakes, so that it takes no part in more than the step that it was stopped in.
    """
    files = {rank: stacks_path(folder, rank) for rank in workers}
    before = {rank: _open_chapter(files[rank], why) for rank in workers}
    for each in workers.values():
        with suppress(psutil.Error):
            each.send_signal(DUMP_SIGNAL)
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
    """Say in the file when and why, and return its size then."""
    return _append(path, f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {why}\n")


def _append(path: Path, text: str) -> int:
    with path.open("ab") as file:
        file.write(text.encode())
        return file.tell()


def end(child: subprocess.Popen[bytes], workers: Mapping[int, psutil.Process], grace_s: float) -> None:
    """Ask the workers to end, wait as long as is allowed, then kill all that the child has started.

    Killed ranks leave torchrun, which then ends its others; the family is looked up before it falls apart.
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
