"""An arm as its conductor sees it: a child process that answers one line of JSON with another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.bench.request import Data
from neobert.errors import ERROR_FILE_ENV, EXIT_TRAINING_FAILED, ProjectError, read_error_file

ARM = "neobert.bench.arm"
PATIENCE_S = 10.0


class Worker:
    """A child that has built its trainer and waits for its turn."""

    def __init__(self, name: str, config: Path, data: Data) -> None:
        self.name = name
        self._error_file = config.with_suffix(".error.json")
        self._child = subprocess.Popen(
            [sys.executable, "-m", ARM, str(config), data],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, ERROR_FILE_ENV: str(self._error_file)},
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have something done and wait for the answer. Raises what the child failed with."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise self._failure()
        return dict(json.loads(answer))

    def close(self) -> None:
        """End the child; it has nothing to save, and its files are its asker's."""
        self._child.kill()
        self._child.communicate()

    def _failure(self) -> ProjectError:
        with suppress(subprocess.TimeoutExpired):  # one that only closed its output hangs, and is ended
            self._child.wait(PATIENCE_S)
        self._child.kill()
        code = self._child.wait()
        told = read_error_file(self._error_file)
        if told is not None:
            return ProjectError(
                told.code, f"arm {self.name}: {told.message}", told.hint, told.place, told.exit_code
            )
        hint = "the reason stands above; if it was memory, two arms hold theirs at once: measure them apart"
        message = f"arm {self.name} ended with exit code {code}"
        return ProjectError("bench-arm-failed", message, hint, exit_code=EXIT_TRAINING_FAILED)
