"""Folder of a model: an exported one, a checkpoint, or the newest checkpoint of a run directory."""

from __future__ import annotations

from pathlib import Path

from neobert.errors import EXIT_USAGE, ProjectError
from neobert.runfiles.checkpoint.folders import LATEST, find
from neobert.runfiles.run_dir import CHECKPOINTS

CODE = "model-folder"


def model_folder(path: Path) -> Path:
    """Return the folder with config.json; of a run directory, the newest checkpoint that verifies.

    Raises `ProjectError`.
    """
    if (path / "config.json").is_file():
        return path
    if (path / CHECKPOINTS).is_dir() and (found := find(path / CHECKPOINTS, LATEST)) is not None:
        return found[0]
    raise ProjectError(
        CODE,
        "is not a model folder: it has no config.json",
        "give an exported folder, a checkpoint folder or a run directory",
        str(path),
        EXIT_USAGE,
    )
