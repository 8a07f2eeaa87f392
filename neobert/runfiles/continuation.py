"""Continuation of another run on other text: its checkpoint, what must agree, and its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.config import from_dict, to_dict
from neobert.config.keys import effect_of
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import Found, Verify, checkpoint_steps, find, holders
from neobert.runfiles.checkpoint.manifest import digest_of_files, verify
from neobert.runfiles.checkpoint.state import read_config
from neobert.runfiles.resume_policy import Difference, differences, structural_differences
from neobert.runfiles.run_dir import AUTO

KEY = "trainer.continue_from"
FILE_NAME = "continued.json"
UNCOMPARED = (KEY, "model.pretrained_checkpoint", "model.init")
"""Keys of the model's initial weights, which have no effect on a trained checkpoint."""
TEXT_SECTIONS = ("dataset", "tokenizer")
MIXTURE = "dataset.mixture"
TRAINED_ON = (
    *(f"tokenizer.{name}" for name in ("path", "name", "vocab_size")),
    *(f"dataset.{name}" for name in ("path", "name", "config", "revision", "train_split", "text_column")),
    *(f"dataset.{name}" for name in ("eval_split", "eval_samples", "validation_split")),
    MIXTURE,
)
"""Keys that decide which tokenizer a run trains: text that is held out is not in its counts."""
HINT = f"set {KEY} to a run directory or to a folder like RUN/checkpoints/1000"


def find_source(place: str, verify: Verify = verify) -> Found:
    """Return the checkpoint to continue from: the folder itself, or the newest one of a run directory.

    Raises `ProjectError` CKP007 if there is none, or if it does not verify.
    """
    path = Path(place)
    root = next((each for each in holders(path) if checkpoint_steps(each)), None)
    try:
        found = find(path, place, verify) if root is None else find(root, AUTO, verify)
    except ProjectError as error:
        raise ProjectError(error.code, error.message, HINT, error.place, error.exit_code) from None
    assert found is not None  # without a checkpoint, `find` raises
    return found


def continuation_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences of two canonical configs that forbid continuing one as the other.

    The model and the kind of optimizer must agree; text, batch and schedule may differ.
    """
    differing = structural_differences(saved, current)
    return tuple(each for each in differing if effect_of(each.key) == "model" and each.key not in UNCOMPARED)


def tokenizer_differences(saved: Mapping[str, Any], current: RunConfig) -> tuple[Difference, ...]:
    """Return the differences of two configs by which the current run trains another tokenizer.

    Empty if the run names a tokenizer: only its content shows whether that is the one of the checkpoint.
    """
    if current.tokenizer.path is not None or current.tokenizer.name is not None:
        return ()
    found = (each for each in differences(saved, to_dict(current)) if each.key in TRAINED_ON)
    return tuple(each for each in found if each.key != MIXTURE or not _has_same_corpora(each))


def _has_same_corpora(mixtures: Difference) -> bool:
    """Return whether two mixtures differ only in their weights, which do not count for a tokenizer."""
    both = mixtures.saved, mixtures.current
    saved, current = ([{**corpus, "weight": None} for corpus in each] for each in both)
    return saved == current


def provenance(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the checkpoint that a run continues, for its run directory and its own checkpoints."""
    config = read_config(folder)
    return {
        "checkpoint": str(folder.absolute()),
        "step": state["step"],
        "tokens_total": state["tokens_total"],
        "files_sha256": digest_of_files(folder),
        **{name: config.get(name, {}) for name in TEXT_SECTIONS},
    }


def reading_source_text(config: RunConfig, source: Mapping[str, Any]) -> RunConfig:
    """Return the config with the text and the tokenizer of the run that it continues."""
    own = to_dict(config)
    text = {name: dict(source[name]) for name in TEXT_SECTIONS}
    loading = (name for name in own["dataset"] if effect_of(f"dataset.{name}") == "loading")
    text["dataset"] |= {name: own["dataset"][name] for name in loading}
    return from_dict(own | text)
