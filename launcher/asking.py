"""Work that a child process does and answers for: a file of JSON in, its standard output as JSON back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.files import write_json
from launcher.probes.child import family_of, kill_all
from launcher.process import child_environment
from launcher.restarts import signal_name
from neobert.errors import EXIT_INTERRUPTED, EXIT_TRAINING_FAILED, ProjectError, read_error_file

ERRAND = "launcher.errand"
STOPPING_S = 10.0


def ask(
    module: str, content: Mapping[str, Any], arguments: Sequence[str] = (), *, hint: str
) -> dict[str, Any]:
    """Run `python -m MODULE CONTENT.json ...` and return its report; raise the ProjectError that it left.

    What it says to people passes through. Where it ends without a word, the error has this hint.
    """
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as folder:
        file, error_file = Path(folder, "content.json"), Path(folder, "error.json")
        write_json(file, content)
        child = subprocess.Popen(
            [sys.executable, "-m", ERRAND, module, str(file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=child_environment(error_file),
            start_new_session=True,
        )
        with stopped_with_us(child):
            answer, _ = child.communicate()
        error = read_error_file(error_file)
    if error is not None:
        raise error
    if child.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if child.returncode:
        raise _failure(module, child.returncode, hint)
    return dict(json.loads(answer))


@contextmanager
def stopped_with_us(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Where the block is left early, stop the child as Ctrl-C would, then kill what is left of its family.

    It is in a session of its own: from a terminal it would hear of a Ctrl-C twice, from a scheduler never.
    """
    try:
        yield
    except BaseException:
        family = family_of(child)
        try:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOPPING_S)
        finally:
            kill_all(family)
        raise


def _failure(module: str, code: int, hint: str) -> ProjectError:
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return ProjectError("child-failed", f"{module} {how}", hint, exit_code=EXIT_TRAINING_FAILED)
