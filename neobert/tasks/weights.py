"""Initial weights from a checkpoint, and their compatibility with tokenizer and config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle, num_renumbered
from neobert.errors import ProjectError
from neobert.families.neobert.trained_settings import refuse_other_model
from neobert.families.table import initial_weights, requested_rows
from neobert.runfiles.checkpoint.model_files import verify_model
from neobert.runfiles.model_folder import folder_of_weights


def start_from_weights(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    load: Callable[[Path], None],
) -> None:
    """Load `model.pretrained_checkpoint` with `load`, if it is set.

    Raises `ProjectError` EXP005 if the weights do not fit, have another vocabulary, or were trained with
    other settings of the model.
    """
    starts_from = initial_weights(config)
    if starts_from is None:
        return
    weights = Path(starts_from)
    refuse_other_vocabulary(tokenizer, weights)
    refuse_other_model(config, weights)
    load(weights)


def require_intact_weights(config: RunConfig) -> None:
    """Raise `ProjectError` CKP007 if `model.pretrained_checkpoint` is a checkpoint whose files changed.

    One rank calls it for all, because it reads every weight.
    """
    starts_from = initial_weights(config)
    if starts_from is not None:
        verify_model(folder_of_weights(Path(starts_from)))


def vocabulary_rows(config: RunConfig, tokenizer: TokenizerBundle) -> int:
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
    num_other, num_tokens = num_renumbered(tokenizer, file) if file.is_file() else (0, 0)
    if num_other:
        raise ProjectError(
            "EXP005",
            f"{folder} was trained with another tokenizer: {num_other:,} of {num_tokens:,} token ids differ "
            "or are missing here",
            f"set tokenizer.path to {folder}",
            "tokenizer",
        )
