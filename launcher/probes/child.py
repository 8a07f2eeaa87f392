"""Child processes of probes, killed with their descendants at a timeout."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from launcher.probes.probe import IncompleteError, TimedOutError, UnsupportedError
from launcher.process.child_start import RUN_MODULE
from launcher.process.process_tree import kill_at_exit, kill_tree
from launcher.process.termination import signal_name
from launcher.process.waiting_child import WaitingChild
from neobert.progress import MARK

TAIL_LINES = 3
MAX_LINES, LONGEST_LINE_BYTES = 1000, 1 << 16
LAST_LINES_S = 2.0
OnProgress = Callable[[str], None]


def run_for_text(command: Sequence[str], timeout_s: float) -> str:
    """Return the standard output of a command as text.

    Raises UnsupportedError if the command does not exist, IncompleteError if it fails, and TimedOutError if
    it exceeds `timeout_s` and is killed.
    """
    ended = run_command(command, timeout_s)
    if ended.returncode:
        raise failure_error(command, ended)
    return ended.stdout.decode(errors="replace")


def failure_error(command: Sequence[str], ended: subprocess.CompletedProcess[bytes]) -> IncompleteError:
    """Return the error of a failed command, with the last lines of its standard error or output."""
    words = _last_output(ended.stderr or ended.stdout, ended.returncode)
    return IncompleteError(f"{_module_or_program(command)}: {words}")


def run_command(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command and return its output and the end of its standard error.

    Raises UnsupportedError if it is not installed, and TimedOutError if it is killed after `timeout_s`.

    Args:
        environment: the command's whole environment; None: the environment of this process.
        on_progress: called with each line of progress on the standard error of the command.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )

    try:
        with _stderr_pipe(on_progress) as (errors, lines), kill_at_exit(start) as child:
            try:
                out, _ = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                kill_tree(child)
                raise _timeout_error(command, timeout_s) from None
    except FileNotFoundError:
        raise UnsupportedError(f"{command[0]} is not installed") from None
    return subprocess.CompletedProcess(command, child.returncode, out, b"".join(lines))


@contextmanager
def _stderr_pipe(on_progress: OnProgress | None) -> Iterator[tuple[int, deque[bytes]]]:
    """Yield a pipe for the standard error of a child, and the last lines written to the pipe."""
    reading, writing = os.pipe()
    lines: deque[bytes] = deque(maxlen=MAX_LINES)
    reader = Thread(target=_read_lines, args=(reading, lines, on_progress), daemon=True)
    reader.start()
    try:
        yield writing, lines
    finally:
        os.close(writing)
        reader.join(LAST_LINES_S)  # a descendant of the command may keep the pipe open forever


def _read_lines(descriptor: int, lines: deque[bytes], on_progress: OnProgress | None) -> None:
    with os.fdopen(descriptor, "rb") as output:
        while line := output.readline(LONGEST_LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\n")
            if not text.startswith(MARK):
                lines.append(line)
            elif on_progress is not None:
                on_progress(text.removeprefix(MARK))


def run_for_json(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Return the JSON object on the last output line of a command; arguments as for `run_command`.

    Raises UnsupportedError if the command is not installed, IncompleteError if it fails or prints no object,
    and TimedOutError if it is killed after `timeout_s`.
    """
    return _parse_json_object(command, run_command(command, timeout_s, environment, on_progress))


def run_waiting_for_json(
    child: WaitingChild, arguments: Sequence[str], timeout_s: float
) -> dict[str, Any] | None:
    """Return the JSON object on the last output line of a waiting child, or None if the child has ended.

    Raises IncompleteError if it fails or prints no object, and TimedOutError if it is killed after
    `timeout_s`.
    """
    command = ("python", "-m", child.module)
    with tempfile.TemporaryDirectory(prefix="neobert-probe-") as folder:
        log = Path(folder, "output")
        process = child.start(arguments, log, Path(os.devnull))
        if process is None:
            return None
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise _timeout_error(command, timeout_s) from None
        finally:
            kill_tree(process)
        ended = subprocess.CompletedProcess(command, process.returncode, log.read_bytes(), b"")
    return _parse_json_object(command, ended)


def _parse_json_object(command: Sequence[str], ended: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    if ended.returncode:
        raise failure_error(command, ended)
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise IncompleteError(f"{_module_or_program(command)} did not print a result as JSON") from None
    if not isinstance(answer, dict):
        raise IncompleteError(f"{_module_or_program(command)} printed JSON that is not an object")
    return answer


def _timeout_error(command: Sequence[str], timeout_s: float) -> TimedOutError:
    return TimedOutError(
        f"{_module_or_program(command)} did not respond within {timeout_s:g} s and was killed"
    )


def _module_or_program(command: Sequence[str]) -> str:
    words = [word for word in command if word not in RUN_MODULE[1:]]
    return words[words.index("-m") + 1] if "-m" in words else words[0]


def _last_output(output: bytes, returncode: int) -> str:
    # Of a traceback, the marks below a line of code say nothing without their column.
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip(" \t~^")]
    ended = f"exit {returncode}" if returncode >= 0 else f"killed by {signal_name(-returncode)}"
    return " / ".join(lines[-TAIL_LINES:]) or ended
