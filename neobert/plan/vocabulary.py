"""Vocabulary size and token ids of a config's tokenizer, read from its files without loading the tokenizer.

If the tokenizer is not on this machine, its size is assumed and marked as such. Files above 40 MiB are not
read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from neobert.config.schema import RunConfig, TokenizerConfig
from neobert.families.table import requested_rows
from neobert.hub_names import cached_commit, snapshot_folder
from neobert.plan.derived import Derived

INERT_TOKEN = "<|neobert_extra_token_{}|>"
INERT = re.compile(r"<\|neobert_extra_token_\d+\|>")
VOCAB_MULTIPLE = 128
"""The number of embedding rows is rounded up to a multiple of this, so that matrix products fill tiles."""

BERT_SIZE = 30_522
KNOWN_SIZES = {"bert-base-uncased": BERT_SIZE, "google-bert/bert-base-uncased": BERT_SIZE}
MAX_FILE_MIB = 40
TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
ROLE_SPELLINGS = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Spellings of each special token in vocabularies of the BERT and RoBERTa families."""
ROLES_ADDED = ("pad_token", "cls_token", "sep_token", "mask_token")
"""Special tokens that tokenizer.allow_special_token_rewrite adds to a tokenizer that lacks them."""


class TokenizerSize(NamedTuple):
    """Number of tokens of a tokenizer, before rounding; `source` explains how it was determined.

    `num_inert` of them do not occur in text: the trainer added them to a vocabulary that it rounded up.
    """

    num_tokens: int
    source: str
    is_assumed: bool = False
    num_inert: int = 0


class _UnreadableError(Exception):
    """Raised if the number of tokens cannot be read from the tokenizer's files; completes "TOKENIZER ..."."""


def plan_vocabulary(config: RunConfig, tokenizer: TokenizerSize) -> Derived[int]:
    """Derive the number of embedding rows. The trainer computes the same number from the loaded tokenizer."""
    requested = requested_rows(config)
    if requested is not None:
        return Derived(requested, "model.vocab_size as given")
    rounded = round_up(tokenizer.num_tokens, VOCAB_MULTIPLE)
    return Derived(rounded, f"{tokenizer.source}, rounded up to a multiple of {VOCAB_MULTIPLE}")


def vocabulary_rows(config: RunConfig) -> int:
    """Return the number of embedding rows, from the tokenizer's files if they are on this machine."""
    return plan_vocabulary(config, tokenizer_size(config.tokenizer)).value


def round_up(value: int, multiple: int) -> int:
    """Round up to the next multiple of `multiple`."""
    return multiple * math.ceil(value / multiple)


def configured_size(config: TokenizerConfig) -> TokenizerSize:
    """Return the tokenizer size from the config alone; assumed unless it is to be trained or well known."""
    if config.path is None and config.name is None:
        size = config.vocab_size or BERT_SIZE
        origin = f"tokenizer.vocab_size {size:,}{'' if config.vocab_size else ' by default'}"
        return TokenizerSize(size, f"{described_training(config)} with {origin}")
    if config.path is None and config.name in KNOWN_SIZES:
        size = KNOWN_SIZES[config.name]
        return TokenizerSize(size, f"{config.name} has {size:,} tokens")
    return _assumed(config, f"{_label(config)} was not read")


def described_training(config: TokenizerConfig) -> str:
    """Return the kind of tokenizer that a config trains, such as "a cased WordPiece"."""
    changes = " without accents" if config.strip_accents else ""
    kinds = {"wordpiece": "WordPiece", "bpe": "byte-level BPE"}
    return f"{'an uncased' if config.lowercase else 'a cased'} {kinds[config.algorithm]}{changes}"


def tokenizer_size(config: TokenizerConfig) -> TokenizerSize:
    """Return the tokenizer size from its files; from the config if it is to be trained or not readable."""
    stated = configured_size(config)
    if not stated.is_assumed:
        return stated
    try:
        tokens = _tokens(_place(config), may_add=config.allow_special_token_rewrite)
    except _UnreadableError as error:
        return _assumed(config, f"{_label(config)} {error}")
    num_inert = sum(map(bool, map(INERT.fullmatch, tokens)))
    source = f"{_label(config)} has {len(tokens):,} tokens"
    return TokenizerSize(len(tokens), source, num_inert=num_inert)


def tokenizer_file(config: TokenizerConfig) -> Path | None:
    """Return the tokenizer.json that a config names; None if it is to be trained or not on this machine."""
    if config.path is None and config.name is None:
        return None
    try:
        place = _place(config)
    except _UnreadableError:
        return None
    file = place / TOKENIZER if place.is_dir() else place
    return file if file.is_file() else None


def token_ids(file: Path) -> dict[str, int]:
    """Return the id of each token of a tokenizer.json, without inert tokens; empty if it cannot be read."""
    try:
        content = _read(file)
    except _UnreadableError:
        return {}
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    # A dictionary has ids; the pairs of a unigram model are in the order of their ids.
    ids = vocabulary if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):
        ids = {str(pair[0]): at for at, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    added = content.get("added_tokens")
    tokens = [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []
    ids = ids | {str(each.get("content")): each.get("id") for each in tokens}
    return {token: at for token, at in ids.items() if isinstance(at, int) and not INERT.fullmatch(token)}


def count_renumbered(here: Mapping[str, int], there: Mapping[str, int]) -> int:
    """Return how many tokens of `there` have another id or none in `here`.

    If all common tokens have the same id and at most half are missing, tokens were only renamed: 0.
    """
    is_moved = any(here[token] != number for token, number in there.items() if token in here)
    num_other = sum(here.get(token) != number for token, number in there.items())
    return num_other if is_moved or 2 * num_other > len(there) else 0


def _label(config: TokenizerConfig) -> str:
    return f"tokenizer.path {config.path}" if config.path else f"tokenizer.name {config.name}"


def _assumed(config: TokenizerConfig, because: str) -> TokenizerSize:
    """Return an assumed size: `tokenizer.vocab_size` for a path without a tokenizer, else BERT's size."""
    to_train = config.vocab_size if config.path is not None else None
    size, origin = (to_train, "tokenizer.vocab_size") if to_train else (BERT_SIZE, "BERT's size")
    source = f"{because}: vocabulary assumed {size:,} ({origin})"
    return TokenizerSize(size, source, is_assumed=True)


def _place(config: TokenizerConfig) -> Path:
    """Return the tokenizer's folder or file. Raises `_UnreadableError` if it is not on this machine."""
    if config.path is not None:
        place = os.path.expanduser(config.path)
        if not os.path.exists(place):
            raise _UnreadableError("does not exist yet")
        return Path(place)
    assert config.name is not None
    return Path(config.name) if os.path.isdir(config.name) else _snapshot(config.name, config.revision)


def _snapshot(name: str, revision: str | None) -> Path:
    snapshot = snapshot_folder(name, cached_commit(name, revision))
    if not os.path.isdir(snapshot):
        raise _UnreadableError("is not in the local Hub cache")
    return snapshot


def _tokens(place: Path, *, may_add: bool) -> frozenset[str]:
    """Return the tokens of a tokenizer folder or a tokenizer.json file that the trainer's loader has.

    Includes tokens of a folder's tokenizer_config.json; without tokenizer.json, vocab.json is used.
    """
    if os.path.isfile(place):
        return _tokens_of_files((place,), _versions((place,)), may_add=may_add)
    is_whole = os.path.isfile(place / TOKENIZER)
    names = (TOKENIZER, SETTINGS) if is_whole else ("vocab.json", "added_tokens.json", SETTINGS)
    files = tuple(place / name for name in names if os.path.isfile(place / name))
    if not files or files[0].name != names[0]:
        raise _UnreadableError(f"has no {TOKENIZER}")
    return _tokens_of_files(files, _versions(files), may_add=may_add)


def _versions(files: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """Return size and modification time of each file, as a cache key."""
    try:
        return tuple((found.st_size, found.st_mtime_ns) for found in (file.stat() for file in files))
    except OSError as error:
        raise _UnreadableError(f"cannot be read: {error.strerror}") from None


@lru_cache(maxsize=8)
def _tokens_of_files(
    files: tuple[Path, ...], versions: tuple[tuple[int, int], ...], *, may_add: bool
) -> frozenset[str]:
    if sum(size for size, _ in versions) > MAX_FILE_MIB * 2**20:
        raise _UnreadableError(f"is larger than {MAX_FILE_MIB} MiB")
    contents = {file.name: _read(file) for file in files}
    settings = contents.pop(SETTINGS, {})
    special = set(_declared(settings))
    names = set(special)
    for content in contents.values():
        names.update(_vocabulary(content))
        special.update(_added(content, only_special=True))
    if not names:
        raise _UnreadableError("contains no vocabulary")
    if may_add:
        names.update(_missing_roles(settings, special))
    return frozenset(names)


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(MAX_FILE_MIB * 2**20))
    except (OSError, ValueError, RecursionError):
        raise _UnreadableError("cannot be read") from None
    if not isinstance(content, dict):
        raise _UnreadableError("cannot be read")
    return content


def _vocabulary(content: dict[str, Any]) -> Iterator[str]:
    """Yield the tokens of the content of a tokenizer.json, or of a vocab.json (token to id)."""
    model = content.get("model")
    if not isinstance(model, dict):
        yield from content
        return
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        yield from vocabulary
    elif isinstance(vocabulary, list):  # of a unigram model: pairs of token and score
        yield from (str(pair[0]) for pair in vocabulary if isinstance(pair, list) and pair)
    yield from _added(content, only_special=False)


def _added(content: dict[str, Any], *, only_special: bool) -> Iterator[str]:
    added = content.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and (token.get("special") or not only_special):
            yield from _text(token)


def _declared(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the tokens in tokenizer_config.json; the loader adds those that the vocabulary lacks."""
    for key, value in settings.items():
        if key.endswith("_token"):
            yield from _text(value)
        elif key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
            for token in (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            ):
                yield from _text(token)


def _text(token: object) -> Iterator[str]:
    content = token.get("content") if isinstance(token, dict) else token
    if isinstance(content, str):
        yield content


def _missing_roles(settings: dict[str, Any], special: set[str]) -> Iterator[str]:
    for role in ROLES_ADDED:
        if settings.get(role) is None and special.isdisjoint(ROLE_SPELLINGS[role]):
            yield ROLE_SPELLINGS[role][0]
