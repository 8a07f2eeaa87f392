"""Continued pretraining from another run's checkpoint on other text: selection, compatibility, provenance."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from neobert.config import from_dict, to_dict
from neobert.config.keys import key_effect, path_keys
from neobert.config.removed_keys import LEGACY_DEFAULTS, without_removed
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import (
    VerifiedCheckpoint,
    Verify,
    best_or_newest_checkpoint,
    checkpoint_root,
    checkpoint_steps,
    find_checkpoint,
)
from neobert.runfiles.checkpoint.manifest import manifest_digest, verify_checkpoint
from neobert.runfiles.checkpoint.state import STATE_DIR, read_config
from neobert.runfiles.model_folder import read_json
from neobert.runfiles.resume_policy import Difference, differences, structural_differences
from neobert.runfiles.run_dir import AUTO, CHECKPOINTS, MANIFEST, RESOLVED

KEY, PATH = "trainer.continue_from", "trainer.eval_source_path"
FILE_NAME = "continued.json"
UNCOMPARED = (KEY, "model.pretrained_checkpoint", "model.revision", "model.init")
"""Config keys of the initial weights; not compared, because the checkpoint replaces these weights."""
TEXT_SECTIONS = ("dataset", "tokenizer")
MIXTURE = "dataset.mixture"
TRAINED_ON = (
    *(f"tokenizer.{name}" for name in ("path", "name", "vocab_size")),
    *(f"tokenizer.{name}" for name in ("algorithm", "lowercase", "strip_accents")),
    *(f"dataset.{name}" for name in ("path", "name", "config", "revision", "train_split", "text_column")),
    *(f"dataset.{name}" for name in ("eval_split", "eval_samples", "validation_split")),
    MIXTURE,
)
"""Config keys that determine the tokenizer that a run trains, including the split of its training text."""
HINT = f"set {KEY} to a run directory or to a folder like RUN/checkpoints/1000"


def find_source_checkpoint(place: str, verify: Verify = verify_checkpoint) -> VerifiedCheckpoint:
    """Return the checkpoint to continue from: the folder itself, or the newest checkpoint of a run directory.

    Raises `ProjectError` CKP007 if no checkpoint is found, or if verification fails.
    """
    path = Path(place)
    root = checkpoint_root(path)
    try:
        found = find_checkpoint(path, place, verify) if root is None else find_checkpoint(root, AUTO, verify)
    except ProjectError as error:
        raise ProjectError(error.code, error.message, HINT, error.place, error.exit_code) from None
    assert found is not None  # without a checkpoint, `find` raises
    return found


def continuation_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the config differences that prevent a run from continuing a checkpoint on other text.

    Model and optimizer type must be equal; text, batch size and schedule may differ.
    """
    differing = structural_differences(saved, current)
    return tuple(each for each in differing if key_effect(each.key) == "model" and each.key not in UNCOMPARED)


def tokenizer_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the config differences that would make the current run train another tokenizer.

    Empty if the config names an existing tokenizer, whose content has to be compared instead.
    """
    if any(current["tokenizer"][key] is not None for key in ("path", "name")):
        return ()
    found = (each for each in differences(saved, current) if each.key in TRAINED_ON)
    return tuple(each for each in found if each.key != MIXTURE or not _has_same_corpora(each))


def _has_same_corpora(mixtures: Difference) -> bool:
    """Return whether two mixtures have the same corpora; weights do not affect tokenizer training."""
    both = mixtures.saved, mixtures.current
    saved, current = ([{**corpus, "weight": None} for corpus in each] for each in both)
    return saved == current


def source_provenance(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a continued checkpoint, which is stored in continued.json and state.json.

    Raises `ProjectError` CKP007 if the checkpoint's config is unreadable.
    """
    config = with_located_text(read_config(folder), folder)
    return {
        "checkpoint": str(folder.absolute()),
        "step": state["step"],
        "tokens_total": state["tokens_total"],
        "files_sha256": manifest_digest(folder),
        **{name: config.get(name, {}) for name in TEXT_SECTIONS},
    }


def with_source_text(config: RunConfig, source: Mapping[str, Any]) -> RunConfig:
    """Return the config with the dataset and tokenizer sections of the source run.

    Keys of `dataset` that only affect loading keep their value. The dataset plug-in is removed.
    """
    own = to_dict(config)
    text = {name: _legacy_section_defaults(name) | source[name] for name in TEXT_SECTIONS}
    loading = (name for name in own["dataset"] if key_effect(f"dataset.{name}") == "loading")
    text["dataset"] |= {name: own["dataset"][name] for name in loading}
    own["plugins"]["dataset"] = None
    return from_dict(own | text)


def with_located_text(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the config of a checkpoint's run; relative paths of text and tokenizer are where it read them.

    They begin at the working directory of that run. A path that does not exist there is returned unchanged.
    """
    record: dict[str, Any] = {}
    with suppress(ProjectError):  # the folder of a checkpoint that was copied may hold another manifest
        record = read_json(folder.absolute().parent.parent / MANIFEST, missing_ok=True)
    start = record.get("working_directory")
    if not isinstance(start, str):
        return dict(config)
    sections = {name: config[name] for name in TEXT_SECTIONS if isinstance(config.get(name), Mapping)}
    located = {name: _located_section(name, section, start) for name, section in sections.items()}
    return {**config, **located}


def _located_section(name: str, section: Mapping[str, Any], start: str) -> dict[str, Any]:
    words = path_keys()  # reserved values by key
    paths = {key: each for key, each in section.items() if (name, key) in words}
    paths = {key: each for key, each in paths.items() if each not in words[name, key]}
    located = {**section, **{key: _located(path, start) for key, path in paths.items()}}
    if mixture := section.get("mixture"):
        located["mixture"] = [{**corpus, "path": _located(corpus.get("path"), start)} for corpus in mixture]
    return located


def _located(path: Any, start: str) -> Any:
    """Return a path or pattern below `start` if it exists there; the paths of a list each."""
    if isinstance(path, list | tuple):
        return [_located(each, start) for each in path]
    if not isinstance(path, str) or not path or Path(path).is_absolute():
        return path
    joined = str(Path(start, path))
    return joined if os.path.exists(joined) or glob.glob(joined, recursive=True) else path


def find_run_checkpoint(place: Path) -> Path | None:
    """Return a checkpoint, or the best or newest one of a run directory; None for another folder.

    Raises `ProjectError` CKP007 if the checkpoint of a run directory fails verification.
    """
    if (place / STATE_DIR / RESOLVED).is_file():
        return place
    root = place / CHECKPOINTS
    return best_or_newest_checkpoint(root) if checkpoint_steps(root) else None


def checkpoint_config(folder: Path) -> RunConfig:
    """Return the config of a checkpoint's run, without removed keys.

    Raises `ProjectError` CKP007 if it is of another version.
    """
    try:
        return from_dict(without_removed(read_config(folder), keep_set=False))
    except ProjectError as error:
        message = f"the config of {folder} is of another version: {error.message}"
        raise ProjectError("CKP007", message, f"set {PATH} to a file or folder with text", PATH) from error


def with_checkpoint_text(config: RunConfig, folder: Path) -> RunConfig:
    """Return the config with a checkpoint's evaluation text, for the same evaluation as in its run.

    `trainer.eval_max_batches` is the lower of both. Raises `ProjectError` CKP007 if the checkpoint's config
    is of another version.
    """
    parent = checkpoint_config(folder)
    source = with_located_text(to_dict(parent), folder)
    reading = with_row_length(config, with_source_text(config, source))
    limits = (parent.trainer.eval_max_batches, config.trainer.eval_max_batches)
    batches = min((each for each in limits if each is not None), default=None)
    return replace(reading, trainer=replace(reading.trainer, eval_max_batches=batches))


def with_row_length(config: RunConfig, reading: RunConfig) -> RunConfig:
    """Return `reading` with the row length of `config`, to which its maximum document length is reduced.

    Masks do not change, since they depend only on document and position.
    """
    row = config.datacollator.max_length or config.dataset.max_seq_length
    documents = min(reading.dataset.max_seq_length, row)
    return replace(
        reading,
        dataset=replace(reading.dataset, max_seq_length=documents),
        datacollator=replace(reading.datacollator, max_length=row),
    )


def _legacy_section_defaults(section: str) -> dict[str, Any]:
    """Return former defaults for keys that a section lacks if an earlier version stored it."""
    start = f"{section}."
    return {key.removeprefix(start): each for key, each in LEGACY_DEFAULTS.items() if key.startswith(start)}
