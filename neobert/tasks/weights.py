"""Weights to start from: the rows of the embedding, and a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle, num_renumbered
from neobert.errors import ProjectError
from neobert.families.table import initial_weights, requested_rows


def start_from_weights(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    load: Callable[[Path], None],
) -> None:
    """Have `load` read `model.pretrained_checkpoint` where the config names one.

    Raises `ProjectError` EXP005 where the weights do not fit, or know another vocabulary.
    """
    starts_from = initial_weights(config)
    if starts_from is None:
        return
    weights = Path(starts_from)
    refuse_other_vocabulary(tokenizer, weights)
    load(weights)


def vocabulary_rows(config: RunConfig, tokenizer: TokenizerBundle) -> int:
    """Return the rows of the embedding: the tokenizer's size, or what the config asks for beyond it.

    Weights that are gone on from may have been made without rows for inert tokens, which no text has.
    """
    asked, is_fresh = requested_rows(config), initial_weights(config) is None
    if asked is None:
        return tokenizer.vocab_size
    least = tokenizer.vocab_size if is_fresh else tokenizer.num_tokens
    if asked < least:
        raise ProjectError(
            "MOD002",
            f"model.vocab_size is {asked:,}, and the tokenizer has {least:,} tokens",
            f"set model.vocab_size to {least} or to null",
            "model.vocab_size",
        )
    return asked


def refuse_other_vocabulary(tokenizer: TokenizerBundle, weights: Path) -> None:
    """Raise `ProjectError` EXP005 where the tokenizer beside weights numbers its tokens otherwise."""
    folder = weights if weights.is_dir() else weights.parent
    file = folder / "tokenizer.json"
    num_other, num_tokens = num_renumbered(tokenizer, file) if file.is_file() else (0, 0)
    if num_other:
        raise ProjectError(
            "EXP005",
            f"{folder} was trained with another tokenizer: {num_other:,} of its {num_tokens:,} tokens have "
            "another number here, or none",
            f"set tokenizer.path to {folder}",
            "tokenizer",
        )
