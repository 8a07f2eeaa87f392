"""Folder of checkpoints: existing, selected and damaged ones.

checkpoints/1000/ checkpoints/2000/    complete checkpoints, one a step
checkpoints/latest -> 2000             relative, swapped by a rename; a text file where symlinks do not work
checkpoints/best -> 1000               the same, where the run tells its checkpoints apart by an evaluation
checkpoints/.tmp-3000-PID/             a save under way, or what a kill left of it
checkpoints/.trash-1000-0/             a checkpoint on its way out
checkpoints/.superseded-3000-0/        what lay ahead of the step that a run was resumed from
checkpoints/.corrupt-3000-0/           a checkpoint that did not verify; nobody removes it but people
checkpoints/.copy-latest-0/            a folder that was found in place of a pointer; somebody's as well

Whatever else lies there is somebody's, and is left alone: `0100`, `100.bak`, `.superseded-x`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.manifest import Manifest, verify
from neobert.runfiles.checkpoint.refusal import StrayEntryError, broken
from neobert.runfiles.run_dir import CHECKPOINTS

LATEST = "latest"
BEST = "best"
PARTIAL = ".tmp"
TRASH = ".trash"
SUPERSEDED = ".superseded"
CORRUPT = ".corrupt"
COPY = ".copy"
# A step is written in one way, so that no two folders are the same one's.
STEP_NAME = re.compile(r"0|[1-9][0-9]*")
SUPERSEDED_NAME = re.compile(re.escape(SUPERSEDED) + r"-([0-9]+)-[0-9]+")
AUTO_HINT = "resume_from_checkpoint takes auto, never, latest, or the path of a checkpoint folder"
UNREADABLE_HINT = "let this user read it, or go on from an earlier checkpoint by its path"
AFRESH_HINT = (
    "restore one of them from a copy, go on from one that was set aside by its path, or move the folder away "
    "to start afresh"
)
LINK_HINT = "mount that disk or correct the link, or move the link away to start at step 0"

Found = tuple[Path, Manifest]
Verify = Callable[[Path], Manifest]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be resumed from, and why."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}"


def checkpoint_steps(root: Path) -> list[int]:
    """Return the steps that have a folder or a link to one, in order, verified or not.

    A link counts where its disk is not mounted, too: a run must not start at step 0 because of that.
    """
    if not root.is_dir():
        return []
    named = (path for path in root.iterdir() if STEP_NAME.fullmatch(path.name))
    return sorted(int(path.name) for path in named if path.is_dir() or path.is_symlink())


def find(root: Path, selector: str, verify: Verify = verify) -> Found | None:
    """Return the verified checkpoint that the selector means, or None for a fresh start. Changes nothing.

    Args:
        verify: what is asked of each checkpoint that is looked at, for callers who have to keep time.

    Raises `ProjectError` CKP007 where a named checkpoint does not verify, or where `auto` finds
    checkpoints and none of them does: starting afresh over them would throw work away.
    """
    return search(root, selector, verify)[0]


def search(root: Path, selector: str, verify: Verify = verify) -> tuple[Found | None, tuple[Rejected, ...]]:
    """Find a checkpoint as `find` does, and return the newer ones that `auto` skipped too.

    A checkpoint that this user may not read is not skipped as damaged: raises `ProjectError` CKP007.
    """
    if selector == "never":
        return None, ()
    try:
        if selector == "auto":
            return _newest_verified(root, verify)
        folder = _named(root, selector)
        return (folder, verify(folder)), ()
    except PermissionError as error:
        raise broken(Path(error.filename), "this user may not read it", UNREADABLE_HINT) from error


def newest_usable(root: Path, verify: Verify = verify) -> Path | None:
    """Return the newest verified checkpoint, skipping damaged and unreadable ones."""
    for step in reversed(checkpoint_steps(root)):
        with suppress(ProjectError, PermissionError):
            if verify(root / str(step)).step == step:
                return root / str(step)
    return None


def in_quarantine(root: Path) -> list[str]:
    """Name the checkpoints that were found broken and renamed."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.name.startswith(f"{CORRUPT}-"))


def set_aside_in(root: Path) -> list[tuple[int, Path]]:
    """List the checkpoints that a resume from an earlier step renamed, with their steps."""
    if not root.is_dir():
        return []
    named = ((SUPERSEDED_NAME.fullmatch(path.name), path) for path in root.iterdir())
    return sorted((int(name[1]), path) for name, path in named if name is not None)


def belongs_to(run_dir: Path, checkpoint: Path) -> bool:
    """Tell whether a checkpoint is one of a run directory's, also through links to another disk."""
    root = run_dir / CHECKPOINTS
    steps = (root / str(step) for step in checkpoint_steps(root))
    kept = (path for _, path in set_aside_in(root))
    places = {Path(os.path.realpath(place)) for place in (run_dir, root, *steps, *kept)}
    target = Path(os.path.realpath(checkpoint))
    return not places.isdisjoint((target, *target.parents))


def latest(root: Path) -> Path | None:
    """Follow `latest`, symlink or text file; None where there is none."""
    return follow(root, LATEST)


def follow(root: Path, name: str) -> Path | None:
    """Follow a pointer beside the checkpoints; None where there is none."""
    pointer = root / name
    if pointer.is_dir():
        return pointer.resolve()
    target = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""
    return root / target if target else None


def _newest_verified(root: Path, verify: Verify) -> tuple[Found | None, tuple[Rejected, ...]]:
    """Return the newest checkpoint that verifies, and the newer ones that do not.

    Raises `ProjectError` CKP007 where there are checkpoints, here, in quarantine or set aside, and none here
    verifies.
    """
    if root.is_symlink() and not root.is_dir():
        raise broken(root, f"the link leads to {root.readlink()}, which is not a folder", LINK_HINT)
    rejected: list[Rejected] = []
    for step in reversed(checkpoint_steps(root)):
        try:
            manifest = verify(root / str(step))
        except StrayEntryError:
            raise  # it is whole: older steps would be trained again for a file that somebody has to move
        except ProjectError as error:
            rejected.append(Rejected(step, error.message))
            continue
        if manifest.step == step:
            return (root / str(step), manifest), tuple(rejected)
        rejected.append(Rejected(step, f"it was saved at step {manifest.step}"))
    looked_at = [
        *map(str, rejected),
        *(f"{name}: in quarantine" for name in in_quarantine(root)),
        *(f"{path.name}: set aside" for _, path in set_aside_in(root)),
    ]
    if looked_at:
        raise broken(root, f"no checkpoint verifies ({'; '.join(looked_at)})", AFRESH_HINT)
    return None, ()


def _named(root: Path, selector: str) -> Path:
    """Resolve a path, `latest` or `best` by themselves, or a path that ends so where symlinks do not work."""
    path = Path(selector)
    if path.name in (LATEST, BEST):
        parent = root if selector in (LATEST, BEST) else path.parent
        folder = follow(parent, path.name)
        if folder is None:
            raise broken(parent / path.name, "there is no such pointer", AUTO_HINT)
        return folder
    if not path.is_dir():
        there = ", ".join(map(str, checkpoint_steps(path.parent))) or "none"
        raise broken(path, f"there is no such folder; checkpoints beside it: {there}", AUTO_HINT)
    if any(map(checkpoint_steps, holders(path))):
        raise broken(path, "it holds checkpoints and is none itself", AUTO_HINT)
    return path


def holders(path: Path) -> tuple[Path, Path]:
    """Return the folder of checkpoints for a run directory or for that folder itself."""
    return path / CHECKPOINTS, path
