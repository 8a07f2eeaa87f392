"""Work that a child process does and answers for: a file of JSON in, its standard output as JSON back."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.files import write_json
from launcher.process import child_environment
from launcher.restarts import signal_name
from neobert.errors import EXIT_INTERRUPTED, EXIT_TRAINING_FAILED, ProjectError, read_error_file


def ask(
    module: str, content: Mapping[str, Any], arguments: Sequence[str] = (), *, hint: str
) -> tuple[dict[str, Any], ProjectError | None]:
    """Run `python -m MODULE CONTENT.json ...` and return its report, or the error that it left.

    What it says to people passes through. Raises ProjectError, with this hint, where it ends without a word.
    """
    with tempfile.TemporaryDirectory(prefix="neobert-launch-") as folder:
        file, error_file = Path(folder, "content.json"), Path(folder, "error.json")
        write_json(file, content)
        answer = subprocess.run(
            [sys.executable, "-m", module, str(file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=child_environment(error_file),
            check=False,
        )
        error = read_error_file(error_file)
    if error is not None:
        return {}, error
    if answer.returncode == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if answer.returncode:
        raise _failure(module, answer.returncode, hint)
    return json.loads(answer.stdout), None


def _failure(module: str, code: int, hint: str) -> ProjectError:
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return ProjectError("child-failed", f"{module} {how}", hint, exit_code=EXIT_TRAINING_FAILED)
