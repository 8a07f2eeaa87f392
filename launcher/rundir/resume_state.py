"""Resume state: whether a run directory belongs to this run, and whether the run is finished."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.rundir.records import read_json, read_outcome
from launcher.terminal import console
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.config.effects import without_effects
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import checkpoint_steps
from neobert.runfiles.checkpoint.manifest import verify
from neobert.runfiles.location import CHECKPOINTS, RESOLVED
from profiles.registry import ResolvedRun
from validators.facts_host import ResumeFacts

NEVER = "never"
NEWEST = ("auto", "latest")


def is_finished(run: ResolvedRun, folder: Path) -> bool:
    """Return whether a resumed run has nothing left to do, however it was launched before.

    Somebody who names a checkpoint wants it gone on from, also where the run has been at its end.
    """
    if run.config.trainer.resume_from_checkpoint not in NEWEST or not _is_same_run(run, folder):
        return False
    return read_outcome(folder).get("status") == "finished" or _is_saved_to_the_end(run, folder)


def goes_on(run: ResolvedRun, folder: Path, resume: ResumeFacts | None) -> bool:
    """Return whether the folder belongs to this run: it has its checkpoint, or the same run without one."""
    if resume is not None and resume.target:
        return not resume.is_elsewhere
    return _is_to_go_on(run) and _is_same_run(run, folder)


def _is_to_go_on(run: ResolvedRun) -> bool:
    return run.config.trainer.resume_from_checkpoint != NEVER


def _is_same_run(run: ResolvedRun, folder: Path) -> bool:
    return _identity(read_json(folder / RESOLVED)) == _identity(to_dict(run.config))


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys of a config, without those that choose how a session starts."""
    return without_effects(flatten(config), ("start",))


def _is_saved_to_the_end(run: ResolvedRun, folder: Path) -> bool:
    """The trainer may be killed between its last checkpoint and its last word.

    Only a checkpoint of the last step is read, which is the only one that can say so; one that is damaged
    says nothing.
    """
    root, last_step = folder / CHECKPOINTS, run.config.trainer.max_steps
    if last_step not in checkpoint_steps(root):
        return False
    console.announce(f"verifying {root / str(last_step)}")
    try:
        return verify(root / str(last_step)).step == last_step
    except (ProjectError, PermissionError):
        return False
