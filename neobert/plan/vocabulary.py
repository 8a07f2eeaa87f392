"""Vocabulary size and token ids of a config's tokenizer, read from its files without loading the tokenizer.

If the tokenizer is not on this machine, its size is assumed and marked as such.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from neobert.config.schema import RunConfig, TokenizerConfig
from neobert.families.table import requested_rows
from neobert.hub_names import cached_commit, snapshot_folder
from neobert.plan.derived import Derived
from neobert.plan.tokenizer_contents import (
    TOKENIZER,
    MalformedError,
    UnreadableError,
    content_or_empty,
    ids_by_token,
    read_tokens,
)

INERT_TOKEN = "<|neobert_extra_token_{}|>"
INERT = re.compile(r"<\|neobert_extra_token_\d+\|>")
VOCAB_MULTIPLE = 128
"""The number of embedding rows is rounded up to a multiple of this, so that matrix products fill tiles."""

BERT_SIZE = 30_522
KNOWN_SIZES = {"bert-base-uncased": BERT_SIZE, "google-bert/bert-base-uncased": BERT_SIZE}


class TokenizerSize(NamedTuple):
    """Number of tokens of a tokenizer, before rounding; `source` explains how it was determined.

    `num_inert` of them do not occur in text: the trainer added them to a vocabulary that it rounded up.
    `fault`: why a tokenizer file is malformed, with its path; empty if no file is malformed.
    """

    num_tokens: int
    source: str
    is_assumed: bool = False
    num_inert: int = 0
    fault: str = ""


def plan_vocabulary(config: RunConfig, tokenizer: TokenizerSize) -> Derived[int]:
    """Derive the number of embedding rows. The trainer computes the same number from the loaded tokenizer."""
    requested = requested_rows(config)
    if requested is not None:
        return Derived(requested, "model.vocab_size as given")
    rounded = round_up(tokenizer.num_tokens, VOCAB_MULTIPLE)
    return Derived(rounded, f"{tokenizer.source}, rounded up to a multiple of {VOCAB_MULTIPLE}")


def num_embedding_rows(config: RunConfig) -> int:
    """Return the number of embedding rows, from the tokenizer's files if they are on this machine."""
    return plan_vocabulary(config, tokenizer_size(config.tokenizer)).value


def round_up(value: int, multiple: int) -> int:
    """Round up to the next multiple of `multiple`."""
    return multiple * math.ceil(value / multiple)


def configured_size(config: TokenizerConfig) -> TokenizerSize:
    """Return the tokenizer size from the config; assumed unless the tokenizer will be trained or is known."""
    if config.path is None and config.name is None:
        size = config.vocab_size or BERT_SIZE
        origin = f"tokenizer.vocab_size {size:,}{'' if config.vocab_size else ' by default'}"
        return TokenizerSize(size, f"{describe_training(config)} with {origin}")
    if config.path is None and config.name in KNOWN_SIZES:
        size = KNOWN_SIZES[config.name]
        return TokenizerSize(size, f"{config.name} has {size:,} tokens")
    return _assumed_size(config, f"{_tokenizer_label(config)} was not read")


def describe_training(config: TokenizerConfig) -> str:
    """Return the kind of tokenizer that a config trains, such as "a cased WordPiece"."""
    changes = " without accents" if config.strip_accents else ""
    kinds = {"wordpiece": "WordPiece", "bpe": "byte-level BPE"}
    return f"{'an uncased' if config.lowercase else 'a cased'} {kinds[config.algorithm]}{changes}"


def tokenizer_size(config: TokenizerConfig) -> TokenizerSize:
    """Return the tokenizer size from its files, or from the config if it will be trained or is unreadable."""
    stated = configured_size(config)
    if not stated.is_assumed:
        return stated
    try:
        tokens = read_tokens(_tokenizer_location(config), may_add=config.allow_special_token_rewrite)
    except MalformedError as error:
        return _assumed_size(config, f"{_tokenizer_label(config)} is malformed")._replace(fault=str(error))
    except UnreadableError as error:
        return _assumed_size(config, f"{_tokenizer_label(config)} {error}")
    num_inert = sum(map(bool, map(INERT.fullmatch, tokens)))
    source = f"{_tokenizer_label(config)} has {len(tokens):,} tokens"
    return TokenizerSize(len(tokens), source, num_inert=num_inert)


def tokenizer_file(config: TokenizerConfig) -> Path | None:
    """Return the tokenizer.json that a config names; None if it will be trained or is not on this machine."""
    if config.path is None and config.name is None:
        return None
    try:
        place = _tokenizer_location(config)
    except UnreadableError:
        return None
    file = place / TOKENIZER if place.is_dir() else place
    return file if file.is_file() else None


def token_ids(file: Path) -> dict[str, int]:
    """Return the id of each token of a tokenizer.json, without inert tokens; empty if it cannot be read."""
    ids = ids_by_token(content_or_empty(file))
    return {token: at for token, at in ids.items() if isinstance(at, int) and not INERT.fullmatch(token)}


def count_renumbered(here: Mapping[str, int], there: Mapping[str, int]) -> int:
    """Return how many tokens of `there` have another id, or no id, in `here`.

    Returns 0 if all common tokens have the same id and at most half are missing: tokens were only renamed.
    """
    is_moved = any(here[token] != number for token, number in there.items() if token in here)
    num_other = sum(here.get(token) != number for token, number in there.items())
    return num_other if is_moved or 2 * num_other > len(there) else 0


def _tokenizer_label(config: TokenizerConfig) -> str:
    return f"tokenizer.path {config.path}" if config.path else f"tokenizer.name {config.name}"


def _assumed_size(config: TokenizerConfig, because: str) -> TokenizerSize:
    """Return an assumed size: `tokenizer.vocab_size` for a path without a tokenizer, else BERT's size."""
    to_train = config.vocab_size if config.path is not None else None
    size, origin = (to_train, "tokenizer.vocab_size") if to_train else (BERT_SIZE, "BERT's size")
    source = f"{because}: vocabulary assumed {size:,} ({origin})"
    return TokenizerSize(size, source, is_assumed=True)


def _tokenizer_location(config: TokenizerConfig) -> Path:
    """Return the tokenizer's folder or file. Raises `UnreadableError` if it is not on this machine."""
    if config.path is not None:
        place = os.path.expanduser(config.path)
        if not os.path.exists(place):
            raise UnreadableError("does not exist yet")
        return Path(place)
    assert config.name is not None
    return Path(config.name) if os.path.isdir(config.name) else _hub_snapshot(config.name, config.revision)


def _hub_snapshot(name: str, revision: str | None) -> Path:
    snapshot = snapshot_folder(name, cached_commit(name, revision))
    if not os.path.isdir(snapshot):
        raise UnreadableError("is not in the local Hub cache")
    return snapshot
