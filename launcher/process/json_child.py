"""Child processes that take a JSON file and return JSON on standard output."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

from launcher.io.files import write_json
from launcher.process.child_start import RUN_MODULE
from launcher.process.process_tree import kill_all, process_tree
from launcher.process.termination import TerminatedError, signal_name
from launcher.process.trainer_process import child_environment
from launcher.terminal import console
from launcher.terminal.activity import activity, show_progress
from neobert.errors import EXIT_INTERRUPTED, EXIT_TRAINING_FAILED, ProjectError, read_error_file
from neobert.printable import printable
from neobert.progress import LOG_INTERVAL_S, MARK

STOPPING_S = 10.0
LAST_LINES_S = 2.0


def run_json_child(
    module: str, content: Mapping[str, Any], arguments: Sequence[str] = (), *, doing: str, hint: str
) -> dict[str, Any]:
    """Run `python -m MODULE CONTENT.json ...` and return its report.

    The child's standard error is printed line by line, without control characters; on a terminal, progress is
    shown on one line. Raises the ProjectError that the child reported, or one with `hint` if it failed
    without a report; KeyboardInterrupt if the child was interrupted.

    Args:
        doing: activity to show on a terminal until the child reports progress.
    """
    with activity(doing), running_json_child(module, content, arguments) as (child, error_file):
        output = child.stdout.read()  # type: ignore[union-attr]
        child.wait()
        error = read_error_file(error_file)
    if error is not None:
        raise error
    if child.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if child.returncode:
        raise _child_error(module, child.returncode, hint)
    return dict(json.loads(output))


@contextmanager
def running_json_child(
    module: str, content: Mapping[str, Any], arguments: Sequence[str] = (), stdin: int = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start `python -m MODULE CONTENT.json ...`, and yield it and the file for its error.

    Its standard output is a pipe for the `with` block to read. If the block raises, the child is stopped.
    """
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as folder:
        file, error_file = Path(folder, "content.json"), Path(folder, "error.json")
        write_json(file, content)
        child = subprocess.Popen(
            [sys.executable, *RUN_MODULE, module, str(file), *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(error_file),
            start_new_session=True,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        with stop_on_exception(child), child.stdout, forward_stderr(child.stderr):
            yield child, error_file


@contextmanager
def forward_stderr(output: IO[bytes]) -> Iterator[None]:
    """Print a child's standard error while the `with` block runs, and the remaining lines afterwards.

    After an exception, such as Ctrl-C, the remaining lines are dropped: they are tracebacks of the child's
    stop.
    """
    is_stopping = Event()
    reader = Thread(target=_print_lines, args=(output, is_stopping), daemon=True)
    reader.start()
    try:
        yield
    except BaseException:
        is_stopping.set()
        raise
    reader.join(LAST_LINES_S)  # a descendant of the child may keep the pipe open forever


def _print_lines(output: IO[bytes], is_stopping: Event) -> None:
    logged_s = -LOG_INTERVAL_S
    with io.TextIOWrapper(output, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if is_stopping.is_set():
                continue
            text, is_progress = line.rstrip("\n").removeprefix(MARK), line.startswith(MARK)
            if is_progress and console.is_terminal(sys.stderr):
                show_progress(text)
            elif not is_progress or time.monotonic() - logged_s >= LOG_INTERVAL_S:
                console.log(printable(text, keep="\t"))
                logged_s = time.monotonic() if is_progress else logged_s


@contextmanager
def stop_on_exception(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """If the `with` block raises an exception, send SIGINT to the child, then kill its process tree.

    The child is in its own session: otherwise a terminal would deliver Ctrl-C twice, and a scheduler never.
    """
    try:
        yield
    except BaseException as error:
        _announce_stop(error)
        family = process_tree(child)
        try:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOPPING_S)
        finally:
            kill_all(family)
        raise


def _announce_stop(error: BaseException) -> None:
    """Log which signal was received, because the child may need seconds to stop."""
    if isinstance(error, KeyboardInterrupt):
        console.log("Ctrl-C: stopping")
    elif isinstance(error, TerminatedError):
        console.log(f"{signal_name(error.number)}: stopping")


def _child_error(module: str, code: int, hint: str) -> ProjectError:
    message = (
        f"{module} was killed by {signal_name(-code)}" if code < 0 else f"{module} exited with code {code}"
    )
    if code == -signal.SIGABRT:
        message = f"{module} aborted (SIGABRT), as libraries do when they cannot allocate memory"
    return ProjectError("child-failed", message, hint, exit_code=EXIT_TRAINING_FAILED)
