"""The folder of checkpoints: what is there, which one is newest, what `latest` points at, what may go.

checkpoints/1000/ checkpoints/2000/    complete checkpoints, one a step
checkpoints/latest -> 2000             relative, swapped by a rename; a text file where symlinks do not work
checkpoints/.tmp-3000-PID/             a save under way, or what a kill left of it
checkpoints/.trash-1000-0/           a checkpoint on its way out
checkpoints/.superseded-3000-0/      what lay ahead of the step that a run was resumed from
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.training.checkpoint.manifest import Manifest, broken, seal, sync, verify

LATEST = "latest"
PARTIAL = ".tmp"
TRASH = ".trash"
SUPERSEDED = ".superseded"
AUTO_HINT = "resume_from_checkpoint takes auto, never, latest, or the path of a checkpoint folder"


def checkpoint_steps(root: Path) -> list[int]:
    """Return the steps that have a folder, in order, verified or not."""
    if not root.is_dir():
        return []
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal() and path.is_dir())


def publish(
    root: Path, step: int, config_digest: str, created_utc: str, write: Callable[[Path], None]
) -> Path:
    """Have `write` fill a folder, seal it, and give it its name; return the checkpoint.

    Until the last rename nothing counts as a checkpoint, and a failure takes the partial folder away again.
    Raises `ProjectError` CKP004 where the file system refuses.
    """
    partial = root / f"{PARTIAL}-{step}-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        write(partial)
        seal(partial, step, config_digest, created_utc)
        _set_aside(root / str(step))
        partial.rename(root / str(step))
        sync(root)
        _point_latest_at(root, str(step))
    except OSError as error:
        raise _refused(root, step, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return root / str(step)


def find(root: Path, selector: str) -> tuple[Path, Manifest] | None:
    """Return the verified checkpoint that the selector means, or None for a fresh start.

    Raises `ProjectError` CKP007 where a named checkpoint does not verify, or where `auto` finds
    checkpoints and none of them does: starting afresh over them would throw work away.
    """
    if selector == "never":
        return None
    if selector == "auto":
        return _newest_verified(root)
    folder = _named(root, selector)
    return folder, verify(folder)


def latest(root: Path) -> Path | None:
    """Follow `latest`, symlink or text file; None where there is none."""
    pointer = root / LATEST
    if pointer.is_dir():
        return pointer.resolve()
    if pointer.is_file():
        return root / pointer.read_text(encoding="utf-8").strip()
    return None


def retain(root: Path, limit: int, protected: frozenset[int]) -> list[int]:
    """Remove the oldest beyond the limit (0: none), never a protected one; return the steps removed."""
    if not limit:
        return []
    doomed = [step for step in checkpoint_steps(root)[:-limit] if step not in protected]
    for step in doomed:
        _remove(root / str(step))
    return doomed


def sweep(root: Path) -> None:
    """Remove what killed saves and removals left behind. Only the run that owns the folder may call this."""
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith((f"{PARTIAL}-", f"{TRASH}-")):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(f".{LATEST}-"):
                path.unlink()


def set_aside_after(root: Path, step: int) -> list[int]:
    """Rename checkpoints beyond `step`, which another history made, out of the way; return their steps."""
    ahead = [each for each in checkpoint_steps(root) if each > step]
    for each in ahead:
        _set_aside(root / str(each))
    if ahead and step in checkpoint_steps(root):
        _point_latest_at(root, str(step))
    return ahead


def _newest_verified(root: Path) -> tuple[Path, Manifest] | None:
    steps = checkpoint_steps(root)
    reasons = []
    for step in reversed(steps):
        folder = root / str(step)
        try:
            manifest = verify(folder)
        except ProjectError as error:
            reasons.append(f"{step}: {error.message}")
            continue
        if manifest.step == step:
            return folder, manifest
        reasons.append(f"{step}: it was saved at step {manifest.step}")
    if reasons:
        raise broken(
            root, f"no checkpoint verifies ({'; '.join(reasons)})", "move the folder away to start afresh"
        )
    return None


def _named(root: Path, selector: str) -> Path:
    """Resolve a path, `latest` by itself, or a path that ends in it where symlinks do not work."""
    path = Path(selector)
    if path.name == LATEST:
        parent = root if selector == LATEST else path.parent
        folder = latest(parent)
        if folder is None:
            raise broken(parent / LATEST, "there is no such pointer", AUTO_HINT)
        return folder
    if not path.is_dir():
        there = ", ".join(map(str, checkpoint_steps(path.parent))) or "none"
        raise broken(path, f"there is no such folder; checkpoints beside it: {there}", AUTO_HINT)
    return path


def _point_latest_at(root: Path, name: str) -> None:
    partial = root / f".{LATEST}-{os.getpid()}"
    partial.unlink(missing_ok=True)
    try:
        partial.symlink_to(name)
    except OSError:
        partial.write_text(name + "\n", encoding="utf-8")
    partial.replace(root / LATEST)
    sync(root)


def _set_aside(folder: Path) -> None:
    if folder.exists():
        folder.rename(_unused(folder.parent, f"{SUPERSEDED}-{folder.name}"))


def _remove(folder: Path) -> None:
    """Rename first: a removal that is killed half-way leaves nothing that looks like a checkpoint."""
    doomed = _unused(folder.parent, f"{TRASH}-{folder.name}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _unused(root: Path, stem: str) -> Path:
    number = 0
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _refused(root: Path, step: int, error: OSError) -> ProjectError:
    return ProjectError(
        code="CKP004",
        message=f"the checkpoint of step {step} could not be written: {error.strerror or error}",
        hint="earlier checkpoints are intact: make room, then go on with --resume auto",
        place=str(root),
        exit_code=EXIT_TRAINING_FAILED,
    )
