"""A child process and all that it started, ended together."""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

REAPING_S = 2.0


_living: set[subprocess.Popen[bytes]] = set()


def kill_family(child: subprocess.Popen[bytes]) -> int:
    """Kill it and all it started, whatever sessions those are in; return how many are left.

    A process that hangs in the driver survives even this, and is not waited for.
    """
    family = family_of(child)
    kill_all(family)
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=REAPING_S)
    return len(psutil.wait_procs(family, timeout=REAPING_S)[1])


@contextmanager
def mortal(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have a child die with the launcher while the block runs: Ctrl-C reaches no session of its own."""
    _living.add(child)
    try:
        yield
    finally:
        _living.discard(child)


@atexit.register
def kill_living() -> None:
    """Kill what threads still wait for; those threads go on, or go with the launcher."""
    for child in tuple(_living):
        kill_all(family_of(child))


def kill_all(family: Sequence[psutil.Process]) -> None:
    """Kill those that are still there."""
    for process in family:
        with suppress(psutil.Error):
            process.kill()


def family_of(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A child and all that it has started, whatever sessions those are in."""
    try:
        parent = psutil.Process(child.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []
