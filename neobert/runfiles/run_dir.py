"""Run directory: file names, outcome of a session, stack dumps, detection of a moved or deleted directory.

Imports no torch, because the launcher uses it too.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
from pathlib import Path
from typing import Any, Literal

from neobert.atomic_write import write_atomically
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError

CODE = "TRN002"
RESOLVED = "resolved.json"
PROVENANCE = "provenance.json"
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
CONFIG = "config.json"
METRICS = "metrics.jsonl"
LOGS = "logs"
# A file of this name in the run directory ends the run, and keeps the next one from starting.
HALT = ".HALT"
OUTCOME = "outcome.json"
AUTO, LATEST, NEVER = "auto", "latest", "never"
NEWEST = (AUTO, LATEST)
"""Values of trainer.resume_from_checkpoint that select the newest checkpoint."""
Status = Literal["finished", "preempted", "interrupted", "failed"]
DUMP_SIGNAL = signal.SIGUSR2
HEARTBEAT_NAME = re.compile(r"heartbeat_rank([0-9]{1,6})\.jsonl")


def is_still_at_path(path: Path, descriptor: int) -> bool:
    """Return whether an open directory is still at its path; True if the file system reports an error."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def missing_run_dir_error(path: Path, step: int) -> ProjectError:
    """Build the `ProjectError` TRN002 for a run directory that was moved or deleted."""
    return ProjectError(
        code=CODE,
        message=f"the run directory was moved or deleted during training; step {step} is not saved",
        hint="move the directory back and resume with --resume auto; if it was deleted, launch again",
        place=str(path),
        exit_code=EXIT_TRAINING_FAILED,
    )


def clear_outcome(run_dir: Path) -> None:
    """Remove outcome.json of an earlier session, if it exists."""
    (run_dir / OUTCOME).unlink(missing_ok=True)


def has_outcome(run_dir: Path) -> bool:
    """Return whether any rank of this session has written outcome.json."""
    return (run_dir / OUTCOME).exists()


def write_outcome(
    run_dir: Path,
    status: Status,
    exit_code: int,
    step: int,
    message: str = "",
    code: str = "",
    hint: str = "",
) -> None:
    """Write outcome.json atomically. `message`, `code` and `hint` describe the error of a failed session."""
    content: dict[str, Any] = {"status": status, "exit_code": exit_code, "step": step, "message": message}
    content |= {name: value for name, value in (("code", code), ("hint", hint)) if value}
    write_atomically(run_dir / OUTCOME, json.dumps(content).encode() + b"\n")


def heartbeat_path(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's heartbeat file."""
    return run_dir / f"heartbeat_rank{rank}.jsonl"


def ranks_with_heartbeat(run_dir: Path) -> list[int]:
    """Return the ranks that have a heartbeat file, in ascending order; empty for an unreadable folder."""
    try:
        names = os.listdir(run_dir)
    except OSError:
        return []
    return sorted({int(match[1]) for name in names if (match := HEARTBEAT_NAME.fullmatch(name))})


def stacks_path(run_dir: Path, rank: int) -> Path:
    """Return the path of the file for a rank's stack dumps."""
    return run_dir / LOGS / f"rank_{rank}.stacks"


def dump_stacks_on_signal(path: Path) -> None:
    """Install a SIGUSR2 handler that appends the Python stacks of all threads to a file.

    It uses faulthandler, which needs no GIL and therefore works while the process hangs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(DUMP_SIGNAL, path.open("ab", buffering=0), all_threads=True)
