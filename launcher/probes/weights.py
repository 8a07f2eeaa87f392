"""Initial weights on this machine: whether a run can start from them, and how they differ from its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.io.files import why_unreadable
from launcher.probes.probe import Subject, request_reading_time
from launcher.rundir.records import read_json
from neobert.config import to_dict
from neobert.config.keys import all_keys, key_effect
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.families.hf.initial_weights import random_head, refuse_other_weights
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.families.table import model_family
from neobert.plan.special_tokens import differing_special_tokens
from neobert.plan.tokenizer_contents import TOKENIZER
from neobert.plan.vocabulary import count_renumbered, token_ids, tokenizer_file
from neobert.plurals import listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.model_files import model_size_bytes, verify_model
from neobert.runfiles.checkpoint.state import CONFIG, STATE_DIR
from neobert.runfiles.continuation import tokenizer_differences
from neobert.runfiles.model_folder import adapter_only_message, folder_of_weights
from neobert.runfiles.run_dir import CONFIG as MODEL_CONFIG
from neobert.runfiles.weights_header import INDEX, PICKLES, WEIGHTS, tensor_shapes
from neobert.tasks.specs import spec_of


def weights_facts(subject: Subject, path_or_name: str) -> dict[str, Any]:
    """Return the fields of `DataFacts` about the initial weights."""
    config, path = subject.config, Path(path_or_name)
    damage = _weights_damage(subject, folder_of_weights(path))
    if damage is not None:
        return {"weights": path_or_name, "weights_damage": damage.message, "weights_hint": damage.hint}
    problem = _weights_error(config, path)
    return {
        "weights": path_or_name,
        "weights_reason": "" if problem is None else problem.message,
        "weights_key": "" if problem is None else problem.place,
        "weights_hint": "" if problem is None else problem.hint,
        **_tokenizer_facts(config, folder_of_weights(path)),
        **({} if problem is not None else _folder_facts(config, folder_of_weights(path))),
    }


def _folder_facts(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the fields of `DataFacts` about positions, special tokens, head and pooling of the weights."""
    tokenizer = tokenizer_file(config.tokenizer)
    family, is_known = model_family(config), (folder / MODEL_CONFIG).is_file()
    base = family.rope_theta_for(config, folder) if is_known else 0.0
    return {
        "weights_positions": family.trained_positions(folder) if is_known else 0,
        "weights_rope_theta": base,
        "special_tokens": {} if tokenizer is None else differing_special_tokens(folder, tokenizer),
        "random_head": random_head(config, folder),
        "undeclared": dict(spec_of(config).differing_keys(config, folder)) if is_known else {},
    }


def _weights_error(config: RunConfig, path: Path) -> ProjectError | None:
    """Return the error with which the trainer would reject the initial weights, or None.

    Checks that the files exist and their headers can be read, that config.json has the sizes of the section
    `model`, and for transformers models that the weights have its shapes.
    """
    if reason := _why_no_weights(path):
        return ProjectError("DAT001", reason)
    try:
        refuse_other_model(config, path)
        refuse_other_weights(config, path)
        _refuse_different_keys(config, folder_of_weights(path))
        tensor_shapes(path)
    except ProjectError as error:
        if error.hint and error.place in all_keys():  # the edits of the section
            return error
        return ProjectError("DAT001", error.located_message, error.hint)  # a damaged file
    return None


def _refuse_different_keys(config: RunConfig, folder: Path) -> None:
    """Raise `ProjectError` EXP005 for a model key whose value differs from the checkpoint's."""
    for key, value in spec_of(config).declared_keys(folder).items():
        section, _, name = key.partition(".")
        own = to_dict(config)[section][name]
        if key_effect(key) == "model" and own != value:
            message = f"{key} is {own}, but the checkpoint declares {value}"
            raise ProjectError("EXP005", message, f"set {key} to {value}", key)


def _weights_damage(subject: Subject, folder: Path) -> ProjectError | None:
    """Return the error CKP007 for a checkpoint whose model files differ from its manifest, or None."""
    try:
        if size_bytes := model_size_bytes(folder):
            request_reading_time(subject, folder, size_bytes)
        verify_model(folder)
    except ProjectError as error:
        return error
    return None


def _tokenizer_facts(config: RunConfig, weights: Path) -> dict[str, Any]:
    """Return the fields of `DataFacts` about the tokenizer of the weights; empty if there is no difference.

    They are also empty if a tokenizer file is missing or unreadable.
    """
    if not (weights / TOKENIZER).is_file():
        return {}
    if config.tokenizer.path is None and config.tokenizer.name is None:
        saved = read_json(weights / STATE_DIR / CONFIG)
        other = tokenizer_differences(saved, to_dict(config)) if saved else ()
        return {"tokenizer_differences": tuple(map(str, other))}
    own = tokenizer_file(config.tokenizer)
    if own is None or own.samefile(weights / TOKENIZER):
        return {}
    here, there = token_ids(own), token_ids(weights / TOKENIZER)
    if not here:  # a file that cannot be read, which the inspection of the text reports
        return {}
    return {"weights_tokens": len(there), "renumbered_tokens": count_renumbered(here, there)}


def _why_no_weights(path: Path) -> str:
    """Return the reason why a path has no readable weights; empty if it has weights.

    Like the trainer, accepts a file, a folder with one file, and a folder with the index of several files.
    """
    if path.is_file():
        return why_unreadable(path)
    if not path.is_dir():
        return "no such file or folder"
    found = [path / name for name in (WEIGHTS, INDEX) if (path / name).is_file()]
    if found:
        return why_unreadable(found[0])
    newest = path / "checkpoints" / "latest"
    if newest.is_dir():
        return f"it is a run directory; its newest checkpoint is {newest}"
    if pickles := sorted(each.name for each in path.iterdir() if each.suffix in PICKLES):
        names = printable(listed(pickles, 2))
        way = "convert them with save_pretrained on an isolated machine"
        return f"its weights are pickles ({names}), which may run code when read; {way}"
    return adapter_only_message(path) or f"it contains no {WEIGHTS}"
