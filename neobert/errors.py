"""Errors shown to users (`ProjectError`), exit codes, and the file that passes an error to the parent."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import extract_tb

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECK_UNKNOWN = 3
EXIT_TRAINING_FAILED = 4
EXIT_PREEMPTED = 75
EXIT_DO_NOT_REQUEUE = 93
EXIT_INTERRUPTED = 130

ERROR_FILE_ENV = "NEOBERT_ERROR_FILE"
ROOT, PACKAGES = Path(__file__).parents[1], ("neobert", "launcher", "validators", "profiles")


@dataclass(eq=False)
class ProjectError(Exception):
    """Error that a user can act on.

    Attributes:
        code: stable identifier; for rules, see `neobert-launch rule CODE`.
        message: the problem, in one sentence.
        hint: the command or the edit that fixes it.
        place: file, config key or argument that the message is about.
        exit_code: exit code of the process (see `docs/recovery.md`).
    """

    code: str
    message: str
    hint: str = ""
    place: str = ""
    exit_code: int = EXIT_CHECK_FAILED

    def __str__(self) -> str:
        tail = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.located_message} [{self.code}]{tail}"

    @property
    def located_message(self) -> str:
        """`place: message`; the message alone if there is no place, or if it begins with the place."""
        return prefix_place(self.place, self.message)


def prefix_place(place: str, message: str) -> str:
    """Return `place: message`; the message alone if there is no place, or if it begins with the place."""
    is_named = re.match(rf"{re.escape(place)}(?![\w/-]|\.\w)", message)
    return message if not place or is_named else f"{place}: {message}"


def first_line(error: BaseException) -> str:
    """Return an error message's first line, or the error's class name if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def raised_at(error: BaseException) -> str:
    """Return ` (at FILE:LINE)` for the last line of this project that raised, else an empty string."""
    for frame in reversed(extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts[len(ROOT.parts) :]
        if Path(frame.filename).is_relative_to(ROOT) and parts[0] in PACKAGES:
            return f" (at {'/'.join(parts)}:{frame.lineno})"
    return ""


def write_error_file(error: ProjectError) -> bool:
    """Write the error as JSON to the file that $NEOBERT_ERROR_FILE names, for the parent process.

    Returns whether the file was written: not if the variable is unset or writing fails (full disk).
    """
    target = os.environ.get(ERROR_FILE_ENV)
    if target:
        with suppress(OSError):
            Path(target).write_text(json.dumps(asdict(error)), encoding="utf-8")
            return True
    return False


def read_error_file(path: Path) -> ProjectError | None:
    """Read the error that a child process wrote with `write_error_file`; return None if there is none.

    An incomplete file (full disk, killed process) counts as none.
    """
    with suppress(OSError, ValueError, TypeError):
        return ProjectError(**json.loads(path.read_text(encoding="utf-8")))
    return None
