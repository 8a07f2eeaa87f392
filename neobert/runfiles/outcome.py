"""`outcome.json`: the result of a session, for the process that started it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from neobert.atomic_write import write_atomically

Status = Literal["finished", "preempted", "interrupted", "failed"]
FILE_NAME = "outcome.json"


def clear_outcome(run_dir: Path) -> None:
    """Remove the outcome of an earlier session."""
    (run_dir / FILE_NAME).unlink(missing_ok=True)


def has_outcome(run_dir: Path) -> bool:
    """Return whether this session, on any rank, has written its outcome."""
    return (run_dir / FILE_NAME).exists()


def write_outcome(run_dir: Path, status: Status, exit_code: int, step: int, message: str = "") -> None:
    """Write how the session ended; a reader sees the old file or the new one."""
    content = {"status": status, "exit_code": exit_code, "step": step, "message": message}
    write_atomically(run_dir / FILE_NAME, json.dumps(content).encode() + b"\n")
