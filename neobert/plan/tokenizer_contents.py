"""Tokens in the files of a tokenizer, read without loading it. Files above 40 MiB are not read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_FILE_MIB = 40
TOKENIZER = "tokenizer.json"
WORDS = "vocab.json"
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


class UnreadableError(Exception):
    """Raised if a tokenizer's files cannot be read; the message is a predicate ("has no tokenizer.json")."""


class MalformedError(UnreadableError):
    """Raised for a file from which no tokenizer can be loaded; the message names the file."""


def read_tokens(place: Path, *, may_add: bool) -> frozenset[str]:
    """Return the tokens that the trainer loads from a tokenizer folder or a tokenizer.json file.

    Includes tokens of a folder's tokenizer_config.json; without tokenizer.json, vocab.json is read. `may_add`
    includes the special tokens that the trainer would add. Raises `UnreadableError`.
    """
    if os.path.isfile(place):
        return _read_tokens_from_files((place,), _file_versions((place,)), may_add=may_add)
    is_whole = os.path.isfile(place / TOKENIZER)
    names = (TOKENIZER, SETTINGS) if is_whole else (WORDS, "added_tokens.json", SETTINGS)
    files = tuple(place / name for name in names if os.path.isfile(place / name))
    if not files or files[0].name != names[0]:
        raise UnreadableError(f"has no {TOKENIZER}")
    return _read_tokens_from_files(files, _file_versions(files), may_add=may_add)


def special_tokens(file: Path) -> frozenset[str]:
    """Return the special tokens of a tokenizer.json; an empty set if it cannot be read."""
    return frozenset(_token_texts(_added_tokens(content_or_empty(file), only_special=True)))


def _file_versions(files: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """Return size and modification time of each file, as a cache key. Raises `UnreadableError`."""
    try:
        return tuple((found.st_size, found.st_mtime_ns) for found in (file.stat() for file in files))
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None


@lru_cache(maxsize=8)
def _read_tokens_from_files(
    files: tuple[Path, ...], versions: tuple[tuple[int, int], ...], *, may_add: bool
) -> frozenset[str]:
    if sum(size for size, _ in versions) > MAX_FILE_MIB * 2**20:
        raise UnreadableError(f"is larger than {MAX_FILE_MIB} MiB")
    contents = {file.name: read_content(file) for file in files}
    settings = contents.pop(SETTINGS, {})
    special = set(_declared_tokens(settings))
    if files[0].name != WORDS:
        _require_vocabulary(files[0], contents[files[0].name])
    names = set(special)
    for content in contents.values():
        names.update(ids_by_token(content))
        special.update(_token_texts(_added_tokens(content, only_special=True)))
    if not names:
        raise UnreadableError("contains no vocabulary")
    if may_add:
        names.update(_missing_role_tokens(settings, special))
    return frozenset(names)


def read_content(file: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a tokenizer. Raises `UnreadableError` or `MalformedError`."""
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(MAX_FILE_MIB * 2**20))
    except OSError:
        raise UnreadableError("cannot be read") from None
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise MalformedError(f"{file} is not a JSON object")
    return content


def content_or_empty(file: Path) -> dict[str, Any]:
    """Return the JSON object in a tokenizer or model file, or an empty dict if it cannot be read."""
    try:
        return read_content(file)
    except UnreadableError:
        return {}


def _require_vocabulary(file: Path, content: dict[str, Any]) -> None:
    """Raise `MalformedError` unless a tokenizer.json has a vocabulary whose ids have no gaps."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        raise MalformedError(f"{file} has no vocabulary")
    if isinstance(vocabulary, list):
        return
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise MalformedError(f"{file} has an id that is not a number")
    ids = set(vocabulary.values())
    added = set(_token_texts(_added_tokens(content, only_special=False)))
    num_tokens = len(ids) + len(added - vocabulary.keys())
    if max(ids) >= num_tokens:
        raise MalformedError(f"{file} has ids up to {max(ids):,} for {num_tokens:,} tokens")


def ids_by_token(content: dict[str, Any]) -> dict[str, Any]:
    """Return the id of each token in the parsed content of a tokenizer.json or vocab.json."""
    model = content.get("model")
    if not isinstance(model, dict):
        return content
    vocabulary = model.get("vocab")
    ids = vocabulary if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):  # pairs of token and score of a unigram model, in the order of ids
        ids = {str(pair[0]): at for at, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    added = _added_tokens(content, only_special=False)
    return ids | {text: each.get("id") for each in added if (text := token_text(each)) is not None}


def _added_tokens(content: dict[str, Any], *, only_special: bool) -> list[dict[str, Any]]:
    added = content.get("added_tokens")
    tokens = [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []
    return [each for each in tokens if each.get("special") or not only_special]


def _declared_tokens(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the tokens in tokenizer_config.json; the loader adds those that the vocabulary lacks."""
    for key, value in settings.items():
        if key.endswith("_token"):
            yield from _token_texts([value])
        elif key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
            tokens = [*value.values()] if isinstance(value, dict) else value
            yield from _token_texts(tokens if isinstance(tokens, list) else ())


def _token_texts(tokens: Iterable[object]) -> Iterator[str]:
    return (text for token in tokens if (text := token_text(token)) is not None)


def token_text(token: object) -> str | None:
    """Return the text of a token (a string or an object with `content`), or None for any other value."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _missing_role_tokens(settings: dict[str, Any], special: set[str]) -> Iterator[str]:
    for role in ROLES_ADDED:
        if settings.get(role) is None and special.isdisjoint(ROLE_SPELLINGS[role]):
            yield ROLE_SPELLINGS[role][0]
