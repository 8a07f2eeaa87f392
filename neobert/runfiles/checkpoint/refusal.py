"""Errors for a checkpoint that a run cannot resume from."""

from __future__ import annotations

from pathlib import Path

from neobert.errors import ProjectError

CODE = "CKP007"


class StrayEntryError(ProjectError):
    """A whole checkpoint with something in its folder that its manifest does not name."""


def broken(folder: Path, reason: str, hint: str = "") -> ProjectError:
    """Build the error for a checkpoint that cannot be resumed from."""
    return ProjectError(code=CODE, message=reason, hint=hint, place=str(folder))
