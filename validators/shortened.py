"""Runs that the command line shortens for a try."""

from __future__ import annotations

from profiles.registry import ResolvedRun
from validators.remaining import MAX_STEPS

OVERRIDE = "override"


def is_shortened(run: ResolvedRun, key: str) -> bool:
    """Return whether the command line sets the last step and leaves `key`, which is for the longer run."""
    return run.origin(MAX_STEPS).kind == OVERRIDE != run.origin(key).kind
