"""First step of a run that starts from a checkpoint, from the names of folders; no checkpoint is read."""

from __future__ import annotations

from pathlib import Path

from neobert.runfiles.checkpoint.folders import (
    STEP_NAME,
    checkpoint_root,
    checkpoint_steps,
    follow_pointer,
    selected_pointer,
)
from neobert.runfiles.run_dir import AUTO, NEVER


def continued_step(place: str | None) -> int:
    """Return the step of trainer.continue_from: a checkpoint's, a run's newest, or 0 if it names none."""
    if place is None:
        return 0
    path = Path(place)
    root = checkpoint_root(path)
    return _step_in_name(path) if root is None else checkpoint_steps(root)[-1]


def resumed_step(root: Path, selector: str) -> int:
    """Return the step that resume_from_checkpoint selects; 0 for a fresh start or if no step is named."""
    if selector == NEVER:
        return 0
    if selector == AUTO:
        return max(checkpoint_steps(root), default=0)
    pointer = selected_pointer(root, selector)
    if pointer is None:
        return _step_in_name(Path(selector))
    target = follow_pointer(pointer.parent, pointer.name)
    return 0 if target is None else _step_in_name(target)


def _step_in_name(path: Path) -> int:
    return int(path.name) if STEP_NAME.fullmatch(path.name) else 0
