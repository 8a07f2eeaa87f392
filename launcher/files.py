"""Writing what the launcher leaves behind: whole or not at all, and a full disk is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.errors import EXIT_CHECK_FAILED, ProjectError


def make_folder(folder: Path) -> Path:
    """Create a folder. Raises ProjectError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old content or the new. Raises ProjectError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """The same for bytes."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from None


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON, indented, with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def cannot_write(path: Path, error: OSError) -> ProjectError:
    """The error for a place that takes nothing."""
    return ProjectError(
        code="not-writable",
        message=f"cannot be written: {error.strerror or error}",
        hint="make room or choose another folder",
        place=str(path),
        exit_code=EXIT_CHECK_FAILED,
    )
