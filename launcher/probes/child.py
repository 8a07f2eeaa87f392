"""Child processes of probes, killed with their descendants at a timeout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from launcher.process.process_tree import kill_family, mortal

TAIL_LINES = 3


def ask(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command. Raises UnsupportedError, IncompleteError or TimedOutError.

    A command that does not exist is unsupported here; a command that fails raises IncompleteError.
    """
    ended = run(command, timeout_s, environment)
    if ended.returncode:
        output = ended.stderr or ended.stdout
        raise IncompleteError(f"{_short(command)}: {_last_words(output, ended.returncode)}")
    return ended.stdout.decode(errors="replace")


def run(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. Raises UnsupportedError or TimedOutError."""
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
            f"{_short(command)} did not respond within {timeout_s:g} s and was killed"
        ) from None
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def ask_json(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON object on the last line of a command's output."""
    lines = ask(command, timeout_s, environment).strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise IncompleteError(f"{_short(command)} printed no result") from None
    if not isinstance(found, dict):
        raise IncompleteError(f"{_short(command)} printed no object")
    return found


def _short(command: Sequence[str]) -> str:
    """Return the name of a command: of a module, or of a program."""
    words = list(command)
    return words[words.index("-m") + 1] if "-m" in words else words[0]


def _last_words(output: bytes, returncode: int) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-TAIL_LINES:]) or f"exit {returncode}"
