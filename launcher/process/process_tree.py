"""Process trees: a child and all its descendants, killed together."""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

REAPING_S = 2.0


_living: set[subprocess.Popen[bytes]] = set()


def kill_family(child: subprocess.Popen[bytes]) -> int:
    """Kill a child and all its descendants, in any session; return how many survived.

    A process that hangs in the driver survives even SIGKILL, and is not waited for.
    """
    family = family_of(child)
    kill_all(family)
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=REAPING_S)
    return len(psutil.wait_procs(family, timeout=REAPING_S)[1])


@contextmanager
def mortal(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a child when the launcher exits during the block: Ctrl-C does not reach other sessions."""
    _living.add(child)
    try:
        yield
    finally:
        _living.discard(child)


@atexit.register
def kill_living() -> None:
    """Kill children that threads still wait for."""
    for child in tuple(_living):
        kill_all(family_of(child))


def kill_all(family: Sequence[psutil.Process]) -> None:
    """Kill the processes that still exist."""
    for process in family:
        with suppress(psutil.Error):
            process.kill()


def family_of(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a child and all its descendants, in any session."""
    try:
        parent = psutil.Process(child.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []
