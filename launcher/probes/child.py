"""A probe in a process of its own, which is killed with all its children when its time is over."""

from __future__ import annotations

import atexit
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError

REAPING_S = 2.0
TAIL_LINES = 3
_living: set[subprocess.Popen[bytes]] = set()


def ask(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. Raises UnsupportedError, IncompleteError or TimedOutError.

    A command that does not exist is unsupported here; one that fails has not found out.
    """
    ended = run(command, timeout_s, environment)
    if ended.returncode:
        said = ended.stderr or ended.stdout
        raise IncompleteError(f"{_short(command)}: {_last_words(said, ended.returncode)}")
    return ended.stdout.decode(errors="replace")


def run(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, whatever that is. Raises UnsupportedError or TimedOutError."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UnsupportedError(f"{command[0]} is not installed") from None
    try:
        with mortal(child):
            out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_family(child)
        raise TimedOutError(
            f"{_short(command)} gave no answer within {timeout_s:g} s and was killed"
        ) from None
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def ask_json(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON object on the last line that a command prints; what stands before it is talk."""
    lines = ask(command, timeout_s, environment).strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise IncompleteError(f"{_short(command)} printed no result") from None
    if not isinstance(found, dict):
        raise IncompleteError(f"{_short(command)} printed no object")
    return found


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


def _short(command: Sequence[str]) -> str:
    """The command as a person knows it: a module by its name, a program by its own."""
    words = list(command)
    return words[words.index("-m") + 1] if "-m" in words else words[0]


def _last_words(output: bytes, returncode: int) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-TAIL_LINES:]) or f"exit {returncode}"
