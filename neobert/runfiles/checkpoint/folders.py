"""Layout of the folder `checkpoints`, and selection of a checkpoint to resume from.

checkpoints/1000/ checkpoints/2000/    complete checkpoints, one per step
checkpoints/latest -> 2000             relative, swapped by a rename; a text file where symlinks do not work
checkpoints/best -> 1000               the same, if trainer.metric_for_best_model is set
checkpoints/.tmp-3000-PID/             a save in progress, or an incomplete one after a kill
checkpoints/.trash-1000-0/             a checkpoint that is being deleted
checkpoints/.superseded-3000-0/        a later checkpoint than the one that a run was resumed from
checkpoints/.corrupt-3000-0/           a checkpoint that failed verification; never deleted by this program
checkpoints/.copy-latest-0/            a folder that was named `latest` or `best`; never deleted either

Other entries are not touched: `0100`, `100.bak`, `.superseded-x`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.manifest import FILE_NAME as MANIFEST
from neobert.runfiles.checkpoint.manifest import Manifest, verify_checkpoint
from neobert.runfiles.checkpoint.refusal import DAMAGED_HINT, IntactCheckpointError, unusable_checkpoint_error
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.runfiles.run_dir import AUTO, CHECKPOINTS, CONFIG, LATEST, NEVER, RESOLVED

BEST = "best"
PARTIAL = ".tmp"
TRASH = ".trash"
SUPERSEDED = ".superseded"
CORRUPT = ".corrupt"
COPY = ".copy"
# A step has one spelling, so that no two folders are of the same step.
STEP_NAME = re.compile(r"0|[1-9][0-9]*")
SUPERSEDED_NAME = re.compile(re.escape(SUPERSEDED) + r"-([0-9]+)-[0-9]+")
AUTO_HINT = "resume_from_checkpoint takes auto, never, latest, or the path of a checkpoint folder"
UNREADABLE_HINT = "give this user read permission, or resume from an earlier checkpoint by its path"
AFRESH_HINT = (
    "restore a checkpoint from a copy, resume from a .superseded folder by its path, or move the folder away "
    "to start at step 0"
)
LINK_HINT = "mount that disk or correct the link, or move the link away to start at step 0"

VerifiedCheckpoint = tuple[Path, Manifest]
Verify = Callable[[Path], Manifest]


@dataclass(frozen=True, slots=True)
class RejectedCheckpoint:
    """Checkpoint that cannot be resumed from: its step and the reason."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}"


def checkpoint_steps(root: Path) -> list[int]:
    """Return the steps that have a checkpoint folder or link, in ascending order, without verification.

    Broken links are included, so that a run does not start at step 0 because a disk is not mounted.
    """
    if not root.is_dir():
        return []
    named = (path for path in root.iterdir() if STEP_NAME.fullmatch(path.name))
    return sorted(int(path.name) for path in named if path.is_dir() or path.is_symlink())


def find_checkpoint(
    root: Path, selector: str, verify: Verify = verify_checkpoint
) -> VerifiedCheckpoint | None:
    """Return the verified checkpoint for a value of resume_from_checkpoint; None for a fresh start.

    Args:
        selector: auto, latest, never, best or the path of a checkpoint.
        verify: function that verifies a candidate; callers with a time limit pass their own.

    Raises `ProjectError` CKP007 if the selected checkpoint fails verification, or if `auto` finds only
    damaged checkpoints. Changes no files.
    """
    return find_checkpoint_and_rejected(root, selector, verify)[0]


def find_checkpoint_and_rejected(
    root: Path, selector: str, verify: Verify = verify_checkpoint
) -> tuple[VerifiedCheckpoint | None, tuple[RejectedCheckpoint, ...]]:
    """Find a checkpoint, or None, like `find_checkpoint`; also return newer ones that `auto` rejected.

    Raises `ProjectError` CKP007 like `find_checkpoint`, and for a checkpoint that this user may not read.
    """
    if selector == NEVER:
        return None, ()
    try:
        if selector == AUTO:
            return _newest_verified(root, verify)
        folder = _selected_folder(root, selector)
        return (folder, verify(folder)), ()
    except PermissionError as error:
        raise unusable_checkpoint_error(
            Path(error.filename), "this user has no read permission for this file", UNREADABLE_HINT
        ) from error


def newest_usable_checkpoint(root: Path, verify: Verify = verify_checkpoint) -> Path | None:
    """Return the newest checkpoint that is readable and passes verification, or None if none does."""
    for step in reversed(checkpoint_steps(root)):
        with suppress(ProjectError, PermissionError):
            if verify(root / str(step)).step == step:
                return root / str(step)
    return None


def best_or_newest_checkpoint(root: Path) -> Path:
    """Return the best checkpoint of a folder, or the newest if no best one is linked, after verification.

    Raises `ProjectError` CKP007 if it is damaged; the hint names the newest usable one, which is another
    model.
    """
    folder = follow_pointer(root, BEST) or root / str(checkpoint_steps(root)[-1])
    try:
        find_checkpoint(root, str(folder))
    except ProjectError as error:
        usable = newest_usable_checkpoint(root) if error.hint == DAMAGED_HINT else None
        if usable is None:
            raise
        raise replace(error, hint=f"restore the checkpoint from a copy, or pass {usable}") from None
    return folder


def corrupt_checkpoint_names(root: Path) -> list[str]:
    """Return the names of the checkpoints that failed verification and were renamed (`.corrupt-*`)."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.name.startswith(f"{CORRUPT}-"))


def superseded_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Return step and path of the checkpoints renamed by a resume from an earlier step (`.superseded-*`)."""
    if not root.is_dir():
        return []
    named = ((SUPERSEDED_NAME.fullmatch(path.name), path) for path in root.iterdir())
    return sorted((int(name[1]), path) for name, path in named if name is not None)


def belongs_to(run_dir: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint is in a run directory, directly or through symlinks to another disk."""
    root = run_dir / CHECKPOINTS
    steps = (root / str(step) for step in checkpoint_steps(root))
    kept = (path for _, path in superseded_checkpoints(root))
    places = {Path(os.path.realpath(place)) for place in (run_dir, root, *steps, *kept)}
    target = Path(os.path.realpath(checkpoint))
    return not places.isdisjoint((target, *target.parents))


def latest_checkpoint(root: Path) -> Path | None:
    """Return the target of the pointer `latest` (a symlink or text file), or None if it does not exist."""
    return follow_pointer(root, LATEST)


def follow_pointer(root: Path, name: str) -> Path | None:
    """Return the target of the pointer `name` (a symlink or text file), or None if it does not exist."""
    pointer = root / name
    if pointer.is_dir():
        return pointer.resolve()
    target = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""
    return root / target if target else None


def _newest_verified(
    root: Path, verify: Verify
) -> tuple[VerifiedCheckpoint | None, tuple[RejectedCheckpoint, ...]]:
    """Return the newest checkpoint that passes verification, and the newer ones that do not.

    The newest is None if there are no checkpoints. Raises `ProjectError` CKP007 if checkpoints exist,
    including renamed ones, but none passes verification.
    """
    if root.is_symlink() and not root.is_dir():
        raise unusable_checkpoint_error(
            root, f"the link points to {root.readlink()}, which is not a folder", LINK_HINT
        )
    rejected: list[RejectedCheckpoint] = []
    for step in reversed(checkpoint_steps(root)):
        try:
            manifest = verify(root / str(step))
        except IntactCheckpointError:
            raise
        except ProjectError as error:
            rejected.append(RejectedCheckpoint(step, error.message))
            continue
        if manifest.step == step:
            return (root / str(step), manifest), tuple(rejected)
        rejected.append(RejectedCheckpoint(step, f"its manifest states step {manifest.step}"))
    looked_at = [
        *map(str, rejected),
        *(f"{name}: in quarantine" for name in corrupt_checkpoint_names(root)),
        *(f"{path.name}: set aside" for _, path in superseded_checkpoints(root)),
    ]
    if looked_at:
        raise unusable_checkpoint_error(
            root, f"no checkpoint passes verification ({'; '.join(looked_at)})", AFRESH_HINT
        )
    return None, ()


def _selected_folder(root: Path, selector: str) -> Path:
    """Return the folder for a selector: `latest`, `best`, a checkpoint path, or a path to such a pointer.

    Raises `ProjectError` CKP007 if it does not exist or is not a checkpoint.
    """
    path, pointer = Path(selector), selected_pointer(root, selector)
    if pointer is not None:
        folder = follow_pointer(pointer.parent, pointer.name)
        if folder is None:
            raise unusable_checkpoint_error(pointer, "no such link to a checkpoint", AUTO_HINT)
        return folder
    if path.is_file():
        raise unusable_checkpoint_error(path, "the path is a file, not a folder", AUTO_HINT)
    if not path.is_dir():
        there = ", ".join(map(str, checkpoint_steps(path.parent))) or "none"
        raise unusable_checkpoint_error(path, f"no such folder; available checkpoints: {there}", AUTO_HINT)
    if checkpoint_root(path) is not None:
        raise unusable_checkpoint_error(
            path, "this folder contains checkpoints but is not a checkpoint", AUTO_HINT
        )
    if reason := _why_no_checkpoint(path):
        raise unusable_checkpoint_error(path, reason, AUTO_HINT)
    return path


def selected_pointer(root: Path, selector: str) -> Path | None:
    """Return the path of the pointer `latest` or `best` that a selector names; None if it names a folder."""
    path = Path(selector)
    if path.name not in (LATEST, BEST):
        return None
    return root / selector if selector in (LATEST, BEST) else path


def _why_no_checkpoint(folder: Path) -> str:
    """Return the reason why a folder is not a checkpoint; empty if it may be one."""
    if STEP_NAME.fullmatch(folder.name) or (folder / MANIFEST).exists() or (folder / STATE_DIR).exists():
        return ""
    if (folder / RESOLVED).is_file():
        return "the run has no checkpoint yet"
    if (folder / CONFIG).is_file():
        return (
            "the folder has weights, but no training state: "
            "only model.pretrained_checkpoint can start from it"
        )
    return "the folder is neither a checkpoint nor a run directory"


def checkpoint_roots(path: Path) -> tuple[Path, Path]:
    """Return the folders that may contain checkpoints: `path`/checkpoints, and `path` itself."""
    return path / CHECKPOINTS, path


def checkpoint_root(path: Path) -> Path | None:
    """Return the first of the `checkpoint_roots` that contains checkpoints; None if there is none."""
    return next((each for each in checkpoint_roots(path) if checkpoint_steps(each)), None)
