"""Attempt at a run: the newest launch in a run directory is the only one that changes it.

A cluster starts a run again when it has lost a node, whose processes may still train, or return later and
write. A lock cannot exclude them: file systems of a cluster may lock per node only. So each
launch writes a token into the run directory; its trainer compares the token before it changes the run, and
stops if another launch has replaced it. A process that is frozen between a comparison and the rename after it
could still do this one rename.

Imports no torch, because the launcher uses it too.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

from neobert.errors import EXIT_DO_NOT_REQUEUE, ProjectError

FILE = "attempt.json"
TOKEN_ENV = "NEOBERT_ATTEMPT"
CODE = "TRN004"


def attempt_token() -> str:
    """Return the token of the launch that started this trainer; empty without a launcher."""
    return os.environ.get(TOKEN_ENV, "")


def is_replaced(run_dir: Path, token: str | None = None) -> bool:
    """Return whether a later launch has taken over the run; False without a token or without its file.

    Args:
        token: token of the launch; None: the token in this trainer's environment.
    """
    own = attempt_token() if token is None else token
    if not own:
        return False
    try:
        current = json.loads((run_dir / FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(current, dict) and current.get("token") != own


def require_current(run_dir: Path) -> None:
    """Raise `ProjectError` TRN004 if a later launch has taken over the run."""
    if is_replaced(run_dir):
        raise replaced_error(run_dir)


def replaced_error(run_dir: Path) -> ProjectError:
    """Build the `ProjectError` TRN004 for a launch that a later one has replaced."""
    return ProjectError(
        code=CODE,
        message="a later launch of this run has taken over the run directory: this one stops without a save",
        hint=f"see `neobert-launch status {shlex.quote(str(run_dir))}`",
        place=str(run_dir),
        exit_code=EXIT_DO_NOT_REQUEUE,
    )
