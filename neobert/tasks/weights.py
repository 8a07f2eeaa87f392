"""Initial weights from a checkpoint: loading, and compatibility with tokenizer and config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle, count_renumbered_in_file
from neobert.errors import ProjectError
from neobert.families.backbone import Backbone, Head
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.families.table import initial_weights, requested_rows
from neobert.plurals import counted, listed
from neobert.printable import printable
from neobert.runfiles.checkpoint.model_files import verify_model
from neobert.runfiles.model_folder import folder_of_weights, read_json
from neobert.runfiles.run_dir import CONFIG

log = logging.getLogger(__name__)


def load_initial_weights(config: RunConfig, tokenizer: TokenizerBundle, backbone: Backbone) -> bool:
    """Load `model.pretrained_checkpoint`, if it is set, and log what was not loaded.

    Returns whether the head is new. Raises `ProjectError` EXP005 if the weights do not fit, have another
    vocabulary, or were trained with other settings of the model.
    """
    starts_from = initial_weights(config)
    if starts_from is None:
        return True
    weights = Path(starts_from)
    refuse_other_vocabulary(tokenizer, weights)
    refuse_other_model(config, weights)
    return start_from(weights, backbone)


def start_from(weights: Path, backbone: Backbone) -> bool:
    """Load weights, log what was not loaded, and return whether the head is new.

    Raises `ProjectError` EXP005 if they do not fit.

    The classes of the head are reordered if the checkpoint has the same label names in another order: class 1
    is neutral in MNLI, but contradiction in CB.
    """
    report = backbone.load(weights)
    log.info("loaded %d tensors from %s", report.num_tensors, report.path)
    if report.initialized:
        num_new = counted(len(report.initialized), "weight")
        log.info("initialized %s that the checkpoint lacks: %s", num_new, listed(report.initialized))
    if report.unused:
        num_unused = counted(len(report.unused), "weight")
        log.info("ignored %s that the model lacks: %s", num_unused, printable(listed(report.unused)))
    if backbone.head is None:
        return False
    names = {module: name for name, module in backbone.model.named_modules()}
    if f"{names[backbone.head.linear]}.weight" in report.initialized:
        return True
    _reorder_classes(backbone.head.linear, backbone.model.config, folder_of_weights(weights) / CONFIG)
    return False


def match_scores(head: Head | None, scores: Mapping[str, float]) -> None:
    """Give a new regression head the mean and the spread of the scores, if there are any.

    A step moves a bias by the learning rate, so the encoder would learn the mean first. With 400 pairs
    of STS-B, of mean 2.7, Spearman of MiniLM on 100 others was 0.50 after 60 steps, and 0.08 without this.
    A step moves the weights as little: predictions of scores with a standard deviation of 14,600 had one of
    9 after 200 steps, and 14,400 with weights multiplied by it. Narrow scores stay a warning (DAT030).
    """
    # Pairs have scores too, next to the head over the vocabulary of masked words.
    if scores and head is not None and head.linear.out_features == 1 and head.linear.bias is not None:
        nn.init.constant_(head.linear.bias, scores["mean"])
        with torch.no_grad():
            head.linear.weight.mul_(max(1.0, scores["std"]))


def _reorder_classes(classifier: nn.Linear, settings: PretrainedConfig, file: Path) -> None:
    there = _label_names(file) if file.is_file() else []
    here = list(settings.id2label.values())
    if there == here or sorted(there) != sorted(here) or len(here) != classifier.out_features:
        return
    rows = torch.tensor([there.index(name) for name in here])
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.copy_(parameter[rows])


def _label_names(file: Path) -> list[str]:
    names = read_json(file, code="EXP005").get("id2label") or {}
    try:
        numbers = {int(number): str(name) for number, name in names.items()}
    except (AttributeError, ValueError) as error:
        hint = 'write the labels as {"0": "name of the first class", ...}, or remove id2label'
        raise ProjectError("EXP005", "id2label does not map numbers to names", hint, str(file)) from error
    return [numbers[number] for number in sorted(numbers)]


def require_intact_weights(config: RunConfig) -> None:
    """Raise `ProjectError` CKP007 if `model.pretrained_checkpoint` is a checkpoint whose files changed.

    One rank calls it for all, because it reads every weight.
    """
    starts_from = initial_weights(config)
    if starts_from is not None:
        verify_model(folder_of_weights(Path(starts_from)))


def num_embedding_rows(config: RunConfig, tokenizer: TokenizerBundle) -> int:
    """Return the number of embedding rows: the tokenizer's size, or a larger model.vocab_size.

    With `model.pretrained_checkpoint`, rows may be missing for inert tokens, which do not occur in text.
    Raises `ProjectError` MOD002 if model.vocab_size is below the number of tokens.
    """
    requested, is_fresh = requested_rows(config), initial_weights(config) is None
    if requested is None:
        return tokenizer.vocab_size
    least = tokenizer.vocab_size if is_fresh else tokenizer.num_tokens
    if requested < least:
        raise ProjectError(
            "MOD002",
            f"model.vocab_size is {requested:,}, but the tokenizer has {least:,} tokens",
            f"set model.vocab_size to {least} or to null",
            "model.vocab_size",
        )
    return requested


def refuse_other_vocabulary(tokenizer: TokenizerBundle, weights: Path) -> None:
    """Raise `ProjectError` EXP005 if the tokenizer saved with the weights assigns other token ids."""
    folder = folder_of_weights(weights)
    file = folder / "tokenizer.json"
    num_other, num_tokens = count_renumbered_in_file(tokenizer, file) if file.is_file() else (0, 0)
    if num_other:
        raise ProjectError(
            "EXP005",
            f"{folder} was trained with another tokenizer: {num_other:,} of {num_tokens:,} token ids differ "
            "or are missing here",
            f"set tokenizer.path to {folder}",
            "tokenizer",
        )
