"""Commands in child processes: their reports, their errors, and their output line by line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from launcher import __main__ as program
from neobert.errors import ProjectError

MODULE = program.__name__.rpartition(".")[0]
FORMAT = ("--output-format", "json")


def report_of(*arguments: str) -> dict[str, Any]:
    """Run a command and return its JSON report, with or without findings. Raises its `ProjectError`."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", MODULE, *arguments, *FORMAT],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        report: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise failed(arguments[0], ended.returncode) from None
    if ended.returncode and not report.get("checks"):  # an error, and not a verdict
        raise _as_error(report, arguments[0], ended.returncode)
    return report


def failed(command: str, code: int) -> ProjectError:
    """Return the error for a command that ended with an exit code and explained it in its output."""
    message = f"{command} ended with exit code {code}"
    return ProjectError("command-failed", message, "see the output above", exit_code=code)


def _as_error(report: dict[str, Any], command: str, code: int) -> ProjectError:
    findings = report.get("findings") or []
    if not findings:
        return failed(command, code)
    first = findings[0]
    place = f"{first['file']}:{first['line']}" if first.get("file") else first.get("path", "")
    return ProjectError(first["code"], first["message"], first["hint"], place, code)


def pass_on(arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run a command and hand each line of its output to `on_line`. Returns the exit code.

    An interrupt is passed to the command, which saves a checkpoint, and raised when the command has ended.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a terminal's Ctrl-C reaches it through this process only
    )
    assert child.stdout is not None
    with child.stdout as lines:
        try:
            for line in lines:
                on_line(line.rstrip("\n"))
        except BaseException:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGINT)
            for line in lines:
                on_line(line.rstrip("\n"))
            child.wait()
            raise
    return child.wait()
