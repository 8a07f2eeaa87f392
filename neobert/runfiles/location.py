"""The run directory: names of its files, and its open descriptor, by which a move or deletion is noticed.

Imports no torch: the launcher and the trainer both read it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError

CODE = "TRN002"
RESOLVED = "resolved.json"
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
# A file of this name in the run directory ends the run, and keeps the next one from starting.
HALT = ".HALT"


def current_path(path: Path, descriptor: int) -> Path | None:
    """Return where an open directory is now; None if it was deleted or left this file system.

    Args:
        path: where it was opened. A file system that cannot tell is taken to have it there still.
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
    """Build the error of a run that has nowhere left to save."""
    return ProjectError(
        code=CODE,
        message="the run directory was deleted, or moved to another file system, during training; "
        f"step {step} is not saved",
        hint="if it was moved, move it back and resume with --resume auto; if not, launch again",
        place=str(path),
        exit_code=EXIT_TRAINING_FAILED,
    )
