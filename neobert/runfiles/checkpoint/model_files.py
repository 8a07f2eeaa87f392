"""Verification of the model files of a checkpoint, for commands that read the model and no training state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neobert.printable import printable
from neobert.runfiles.checkpoint.manifest import FILE_NAME, read_content, verify_file
from neobert.runfiles.checkpoint.refusal import broken

SUFFIXES = (".safetensors", ".json", ".txt", ".model")
"""Endings of weights, their index, config and tokenizer files; code and the model card are not read."""
UNREADABLE_HINT = "give this user read permission, or use another checkpoint by its path"

_verified: set[tuple[object, ...]] = set()


def verify_model(folder: Path) -> None:
    """Verify weights, config and tokenizer files of a checkpoint against its manifest.

    Does nothing for a folder without a manifest. Files that are missing or that the manifest does not list
    are ignored, as is the training state. A process reads an unchanged file only once. Raises `ProjectError`
    CKP007 if a file or the manifest is damaged or may not be read.
    """
    with _refusing_unreadable(folder):
        for name, expected in _listed(folder).items():
            with suppress(FileNotFoundError):  # its reader reports it
                _verify_once(folder, name, expected)


def model_size_bytes(folder: Path) -> int:
    """Return the size of the files that `verify_model` reads, as the manifest declares it.

    It is 0 without a manifest. Raises `ProjectError` CKP007 for a damaged or unreadable manifest.
    """
    with _refusing_unreadable(folder):
        return sum(expected["size"] for expected in _listed(folder).values())


@contextmanager
def _refusing_unreadable(folder: Path) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to a `ProjectError` CKP007."""
    try:
        yield
    except PermissionError as error:
        name = Path(error.filename or FILE_NAME).name
        message = f"this user has no read permission for {printable(name)}"
        raise broken(folder, message, UNREADABLE_HINT) from error
    except OSError as error:
        raise broken(folder, f"cannot be read: {printable(str(error))}") from error


def _listed(folder: Path) -> Mapping[str, Any]:
    """Return the size and digest of each model file in the manifest; empty without a manifest."""
    if not os.path.lexists(folder / FILE_NAME):
        return {}
    files = read_content(folder)["files"]
    return {name: each for name, each in files.items() if "/" not in name and name.endswith(SUFFIXES)}


def _state_of(path: Path) -> tuple[object, ...]:
    """Return values that change with every write of a file: programs cannot set ctime."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _verify_once(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Verify a file, unless this process has done so and the file is unchanged since."""
    state = (*_state_of(folder / name), expected["size"], expected["sha256"])
    if state not in _verified:
        verify_file(folder, name, expected)
        _verified.add(state)
