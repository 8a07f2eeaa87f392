"""Model folders on disk: exported folders, checkpoints and run directories."""

from __future__ import annotations

import json
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

from neobert.config.removed_keys import without_removed
from neobert.errors import EXIT_USAGE, ProjectError
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.folders import best_or_newest_checkpoint, checkpoint_steps
from neobert.runfiles.checkpoint.model_files import verify_model
from neobert.runfiles.run_dir import CHECKPOINTS, CONFIG, RESOLVED

CODE = "model-folder"
NEOBERT_FOLDER = "pass a NeoBERT checkpoint, or its run directory"
ADAPTER_CONFIG = "adapter_config.json"
RESTORE_HINT = "restore the file from a copy"


def model_folder(path: Path) -> Path:
    """Return the folder with the model's config.json: `path`, or the checkpoint of a run directory.

    That is its best checkpoint, if it has one, else the newest. Raises `ProjectError` without a model, or
    CKP007 if the checkpoint fails verification; of one given by its path, only the model files are verified.
    """
    require_model_folder(path)
    if (path / CONFIG).is_file():
        verify_model(path)
        return path
    return best_or_newest_checkpoint(path / CHECKPOINTS)


def read_run_config(folder: Path) -> dict[str, Any] | None:
    """Return the resolved config of a run directory, or of the run of a checkpoint; None for neither.

    Removed keys of earlier versions are left out. Raises `ProjectError` if the file is unreadable or not a
    JSON object.
    """
    places = (folder, folder.absolute().parent.parent)
    run = next((each for each in places if (each / RESOLVED).is_file()), None)
    return None if run is None else without_removed(read_json(run / RESOLVED), keep_set=False)


def folder_of_weights(path: Path) -> Path:
    """Return `path` if it is a folder, or the parent folder of a weights file."""
    return path if path.is_dir() else path.parent


def require_model_folder(path: Path) -> None:
    """Raise `ProjectError` unless the path contains a model. Its files are not verified."""
    if (path / CONFIG).is_file() or checkpoint_steps(path / CHECKPOINTS):
        return
    hint = "pass an exported folder, a checkpoint folder or a run directory"
    if not path.is_dir():
        message = "the path is a file, not a model folder" if path.exists() else "no such folder"
    elif (path / RESOLVED).is_file():
        message = "the run has no checkpoint yet"
        hint = (
            f"check whether the run is alive: neobert-launch status {shlex.quote(str(path))}; "
            "its first checkpoint is saved at step trainer.save_steps"
        )
    elif reason := adapter_only_message(path):
        message = f"the folder is {reason}"
    else:
        message = "the folder is not a model folder: it has no config.json"
        # An export of several formats, or a repository in the cache of the Hub.
        weights = chain(path.glob("*/*.safetensors"), path.glob("snapshots/*/*.safetensors"))
        if folders := {printable(str(each.parent)) for each in weights}:
            hint = f"pass a folder in it: {listed(sorted(folders))}"
    raise ProjectError(CODE, message, hint, str(path), EXIT_USAGE)


def adapter_only_message(path: Path) -> str:
    """Return a message for a folder with only an adapter, including the fix; an empty string otherwise."""
    if not (path / ADAPTER_CONFIG).is_file():
        return ""
    around = path.absolute().parent
    way = (
        f"pass {printable(str(around))}, which has both merged"
        if (around / CONFIG).is_file()
        else "merge both with peft (merge_and_unload) and save the model"
    )
    return f"an adapter without its base model; {way}"


def read_json(path: Path, *, code: str = CODE, missing_ok: bool = False, expect_list: bool = False) -> Any:
    """Read a JSON object from a model folder or, with `expect_list`, a list of objects.

    Raises `ProjectError` if the file is unreadable or has other content. With `missing_ok`, a missing file
    gives an empty object or list.
    """
    if missing_ok and not path.is_file():
        return [] if expect_list else {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProjectError(
            code, f"the file cannot be read: {printable(str(error))}", RESTORE_HINT, str(path)
        ) from error
    is_right = (
        isinstance(content, list) and all(isinstance(each, dict) for each in content)
        if expect_list
        else isinstance(content, dict)
    )
    if not is_right:
        kind = "list of objects" if expect_list else "object"
        raise ProjectError(code, f"the file is not a JSON {kind}", RESTORE_HINT, str(path))
    return content
