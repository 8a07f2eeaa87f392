"""Run directory: file names, outcome of a session, stack dumps, detection of a move or deletion.

Imports no torch, because the launcher uses it too.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from neobert.atomic_write import write_atomically
from neobert.errors import EXIT_TRAINING_FAILED, ProjectError

CODE = "TRN002"
RESOLVED = "resolved.json"
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


def current_path(path: Path, descriptor: int) -> Path | None:
    """Return where an open directory is now; None if it was deleted or left this file system.

    Args:
        path: its path when it was opened, returned if the file system does not report the current one.
    """
    if _is_at(path, descriptor):
        return path
    with suppress(OSError):
        moved = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return moved if _is_at(moved, descriptor) else None
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def moved_error(path: Path, moved: Path, step: int) -> ProjectError:
    """Build the error of a run that saved and stopped in a directory of another name."""
    return ProjectError(
        code=CODE,
        message=f"the run directory was moved to {moved} during training; step {step} is saved there",
        hint="move it back, then resume with --resume auto",
        place=str(path),
        exit_code=EXIT_TRAINING_FAILED,
    )


def deleted_error(path: Path, step: int) -> ProjectError:
    """Build the error of a run whose directory was deleted."""
    return ProjectError(
        code=CODE,
        message="the run directory was deleted, or moved to another file system, during training; "
        f"step {step} is not saved",
        hint="move the directory back and resume with --resume auto; if it was deleted, launch again",
        place=str(path),
        exit_code=EXIT_TRAINING_FAILED,
    )


def clear_outcome(run_dir: Path) -> None:
    """Remove the outcome of an earlier session."""
    (run_dir / OUTCOME).unlink(missing_ok=True)


def has_outcome(run_dir: Path) -> bool:
    """Return whether this session, on any rank, has written its outcome."""
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
    """Write the result of the session atomically; message, code and hint are those of its error."""
    content: dict[str, Any] = {"status": status, "exit_code": exit_code, "step": step, "message": message}
    content |= {name: value for name, value in (("code", code), ("hint", hint)) if value}
    write_atomically(run_dir / OUTCOME, json.dumps(content).encode() + b"\n")


def heartbeat_path(run_dir: Path, rank: int) -> Path:
    """Return the file of a rank's heartbeats."""
    return run_dir / f"heartbeat_rank{rank}.jsonl"


def ranks_with_heartbeat(run_dir: Path) -> list[int]:
    """Return the ranks that have a file of heartbeats, in order."""
    try:
        names = os.listdir(run_dir)
    except OSError:
        return []
    return sorted({int(match[1]) for name in names if (match := HEARTBEAT_NAME.fullmatch(name))})


def stacks_path(run_dir: Path, rank: int) -> Path:
    """Return the file of a rank's stack dumps."""
    return run_dir / LOGS / f"rank_{rank}.stacks"


def dump_on_request(path: Path) -> None:
    """Append the Python stacks of all threads to a file at every SIGUSR2.

    The handler is written in C and needs no GIL, so it answers while the process hangs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(DUMP_SIGNAL, path.open("ab", buffering=0), all_threads=True)
