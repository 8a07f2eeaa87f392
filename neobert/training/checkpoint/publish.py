"""Atomic changes of the checkpoint folder by rename, so that a kill leaves only complete checkpoints."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.runfiles.attempt import require_current
from neobert.runfiles.checkpoint.folders import (
    BEST,
    COPY,
    CORRUPT,
    PARTIAL,
    SUPERSEDED,
    TRASH,
    RejectedCheckpoint,
    checkpoint_steps,
    latest_checkpoint,
)
from neobert.runfiles.checkpoint.manifest import (
    SHARDED,
    WHOLE,
    Manifest,
    read_manifest,
    seal_checkpoint,
    sync_to_disk,
    verify_checkpoint,
)
from neobert.runfiles.checkpoint.refusal import StrayEntryError
from neobert.runfiles.run_dir import LATEST
from neobert.runfiles.weights_header import INDEX

log = logging.getLogger(__name__)


def publish(
    root: Path,
    step: int,
    config_digest: str,
    created_utc: str,
    write: Callable[[Path], None],
    metrics: Mapping[str, float] | None = None,
) -> Manifest:
    """Write a checkpoint to a temporary folder, rename and verify it, and point `latest` at it.

    Returns the manifest. `write` writes the files into the folder that it receives. A failure removes the
    temporary folder. If only `latest` cannot be updated, the checkpoint is kept and a warning is logged.
    Raises `ProjectError` CKP004 if writing fails, or if the bytes read back differ; TRN004 if a later launch
    has taken over the run.
    """
    partial = root / f"{PARTIAL}-{step}-{os.getpid()}"
    folder = root / str(step)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        root.mkdir(exist_ok=True)  # not its parents: a run directory that was moved must not be recreated
        partial.mkdir()
        write(partial)
        kind = SHARDED if (partial / INDEX).exists() else WHOLE
        seal_checkpoint(partial, step, config_digest, created_utc, metrics, kind)
        require_current(root.parent)
        # An older folder of this step is renamed, not replaced: rename() cannot replace a folder that is not
        # empty, and until the new one verifies the old one may be all that is left.
        set_aside(folder)
        partial.rename(folder)
        sync_to_disk(root)  # the rename itself is on disk only after its parent was synced
        # fsync reports no bytes that a network file system or a failing disk drops later; reading back does.
        manifest = _verify_written(folder)
    except OSError as error:
        raise failed_save_error(root, step, error.strerror or str(error)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    require_current(root.parent)
    try:
        point_link(root, LATEST, folder.name)
    except OSError as error:
        log.warning("checkpoint %d is complete, but the link %s was not updated: %s", step, LATEST, error)
    return manifest


def point_link(root: Path, name: str, target: str) -> None:
    """Point `latest` or `best` at a checkpoint atomically.

    The pointer is a relative symlink, or a text file where symlinks do not work. A folder with the pointer's
    name (left by a copy that followed links) is renamed and kept.
    """
    partial, pointer = root / f".{name}-{os.getpid()}", root / name
    partial.unlink(missing_ok=True)
    try:
        partial.symlink_to(target)
    except OSError:
        partial.write_text(target + "\n", encoding="utf-8")
        sync_to_disk(partial)
    if pointer.is_dir() and not pointer.is_symlink():
        copy = _unused_path(root, f"{COPY}-{name}")
        pointer.rename(copy)
        log.warning("%s was a folder: renamed it to %s and created a link to %s", pointer, copy.name, target)
    partial.replace(pointer)
    sync_to_disk(root)


def quarantine(root: Path, rejected: Sequence[RejectedCheckpoint], good: str | None = None) -> None:
    """Rename checkpoints that failed verification, so that nothing loads them. They are not deleted.

    Args:
        good: name of the checkpoint that the run resumes from instead, for `latest`; None leaves `latest`.
    """
    for each in rejected:
        kept = _unused_path(root, f"{CORRUPT}-{each.step}")
        (root / str(each.step)).rename(kept)
        log.warning("checkpoint %d is damaged and was renamed to %s: %s", each.step, kept.name, each.reason)
    if rejected and good is not None:
        point_link(root, LATEST, good)


def delete_temporary_files(root: Path) -> None:
    """Delete temporary files of killed saves and removals. The caller must hold the run directory's lock.

    The process id in a temporary folder's name is not checked: while the caller holds the lock, no other
    process writes checkpoints.
    """
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith((f"{PARTIAL}-", f"{TRASH}-")):
                _delete_folder(path)
            elif path.name.startswith((f".{LATEST}-", f".{BEST}-")):
                path.unlink(missing_ok=True)  # renamed by the last save of a session in this process


def set_aside_after(root: Path, step: int) -> list[int]:
    """Rename the checkpoints of steps after `step`, and point `latest` at `step`; return the renamed steps.

    After a resume from `step` they are outdated: `auto` would resume from them, and the next save of
    the same step would collide with their folder. A save that was killed before its end left `latest` behind.
    """
    ahead = [each for each in checkpoint_steps(root) if each > step]
    for each in ahead:
        set_aside(root / str(each))
    newest = latest_checkpoint(root)
    if step in checkpoint_steps(root) and (newest is None or newest.name != str(step)):
        point_link(root, LATEST, str(step))
    return ahead


def set_aside(folder: Path) -> None:
    """Rename a step's checkpoint folder, if it exists, to make room for a new one."""
    if os.path.lexists(folder):
        folder.rename(_unused_path(folder.parent, f"{SUPERSEDED}-{folder.name}"))


def remove(folder: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a kill leaves no incomplete checkpoint."""
    doomed = _unused_path(folder.parent, f"{TRASH}-{folder.name.removeprefix('.')}")
    folder.rename(doomed)
    _delete_folder(doomed)


def _delete_folder(path: Path) -> None:
    """Delete a folder. For a symlink, only the link is deleted, not its target."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def failed_save_error(root: Path, step: int, reason: str) -> ProjectError:
    """Build the `ProjectError` CKP004 for a failed save."""
    return ProjectError(
        code="CKP004",
        message=f"the checkpoint of step {step} could not be written: {reason}",
        hint="earlier checkpoints are intact: free disk space or fix permissions, then use --resume auto",
        place=str(root),
        exit_code=EXIT_TRAINING_FAILED,
    )


def _verify_written(folder: Path) -> Manifest:
    try:
        return verify_checkpoint(folder)
    except StrayEntryError as error:
        log.warning("checkpoint %s is intact, but a resume will reject it: %s", folder.name, error)
        return read_manifest(folder)
    except ProjectError as error:
        quarantine(folder.parent, [RejectedCheckpoint(int(folder.name), error.message)])
        raise OSError(f"the bytes read back differ: {error.message}") from error


def _unused_path(root: Path, stem: str) -> Path:
    number = 0
    while os.path.lexists(root / f"{stem}-{number}"):
        number += 1
    return root / f"{stem}-{number}"
