"""Errors for unusable checkpoints, for links out of their folders, and for unexpected files in them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from neobert.errors import ProjectError
from neobert.plurals import listed
from neobert.printable import printable

CODE = "CKP007"
MAX_NAMED = 3
STRAY_HINT = "move these entries out of the checkpoint folder, which may contain only saved files"
DAMAGED_HINT = "restore the checkpoint from a copy, or use another one by its path"
VERSION_HINT = (
    "use the version of neobert-launch that saved the checkpoint, or a later one; "
    "or use an earlier checkpoint by its path"
)
LINK_HINT = "copy the checkpoint and follow its links (cp -rL), then resume from the copy"


class IntactCheckpointError(ProjectError):
    """Raised for an unusable checkpoint that is not damaged: skipping it would repeat steps needlessly."""


class StrayEntryError(IntactCheckpointError):
    """Raised for an intact checkpoint whose folder has an entry that the manifest does not list."""


def unusable_checkpoint_error(folder: Path, reason: str, hint: str = DAMAGED_HINT) -> ProjectError:
    """Build the `ProjectError` CKP007 for a checkpoint that cannot be used."""
    return ProjectError(code=CODE, message=reason, hint=hint, place=str(folder))


def refuse_later_version(folder: Path, file: str, version: int, known: int) -> None:
    """Raise `IntactCheckpointError` CKP007 if this version of the program cannot read a schema version."""
    if version > known:
        message = f"{file} has schema version {version:,}; this version reads {known:,}"
        raise IntactCheckpointError(CODE, message, VERSION_HINT, str(folder))


def refuse_other_kind(folder: Path, file: str, kind: str, known: Collection[str]) -> None:
    """Raise `IntactCheckpointError` CKP007 if this version of the program cannot read a kind of weights."""
    if kind not in known:
        message = f"{file} has kind {printable(kind)}; this version reads {listed(sorted(known))}"
        raise IntactCheckpointError(CODE, message, VERSION_HINT, str(folder))


def list_entries(folder: Path, below: str = "") -> Iterator[str]:
    """Yield the relative POSIX paths of all files and folders in `folder`, recursively.

    Links to folders are not followed.
    """
    with os.scandir(folder / below) as found:
        for entry in found:
            name = f"{below}{entry.name}"
            yield name
            if entry.is_dir(follow_symlinks=False):
                yield from list_entries(folder, f"{name}/")


def refuse_link_out(folder: Path, name: str) -> None:
    """Raise `ProjectError` CKP007 if a file of the checkpoint is a link out of its folder."""
    path = folder / name
    if os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        message = f"{printable(name)} is a symbolic link out of the checkpoint"
        raise unusable_checkpoint_error(folder, message, LINK_HINT)


def refuse_strays(folder: Path, present: Collection[str], expected: Collection[str]) -> None:
    """Raise `StrayEntryError` naming entries that are neither expected files nor their folders."""
    known = {parent for name in expected for parent in (name, *_parent_folders(name))}
    strays = set(present) - known
    if strays:
        topmost = sorted(name for name in strays if strays.isdisjoint(_parent_folders(name)))
        message = f"the checkpoint's manifest does not list {printable(listed(topmost, MAX_NAMED))}"
        raise StrayEntryError(CODE, message, STRAY_HINT, str(folder))


def _parent_folders(name: str) -> list[str]:
    return [name[:end] for end, character in enumerate(name) if character == "/"]
