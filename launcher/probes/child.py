"""A probe in a process of its own, which is killed with all its children when its time is over."""

from __future__ import annotations

import atexit
import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    name = command[0]
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
        raise UnsupportedError(f"{name} is not installed") from None
    _living.add(child)
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_family(child)
        raise TimedOutError(
            f"{_short(command)} gave no answer within {timeout_s:g} s and was killed"
        ) from None
    finally:
        _living.discard(child)
    if child.returncode:
        raise IncompleteError(f"{_short(command)}: {_last_words(err or out, child.returncode)}")
    return out.decode(errors="replace")


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
    family = _family(child.pid)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=REAPING_S)
    return len(psutil.wait_procs(family, timeout=REAPING_S)[1])


@atexit.register
def _kill_living() -> None:
    """Ctrl-C does not reach a session of its own, and the thread that waits there goes with the launcher."""
    for child in tuple(_living):
        for process in _family(child.pid):
            with suppress(psutil.Error):
                process.kill()


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
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
