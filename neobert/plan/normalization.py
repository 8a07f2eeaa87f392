"""Normalization of words by the tokenizer of a config, read from its file without loading the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category, normalize

from neobert.config.schema import TokenizerConfig
from neobert.plan.tokenizer_contents import UnreadableError, read_content
from neobert.plan.vocabulary import KNOWN_SIZES, tokenizer_file

ACCENT = "Mn"
"""Unicode category of the combining marks that tokenizers delete: accents, tones and most vowel signs."""


class Normalization(NamedTuple):
    """Changes of a tokenizer to words: lower case, and deletion of accents."""

    lowers_case: bool
    deletes_accents: bool

    def apply(self, word: str) -> str:
        """Normalize a word as the tokenizer does; the result is in NFC."""
        if self.deletes_accents:
            word = "".join(each for each in normalize("NFD", word) if category(each) != ACCENT)
        return normalize("NFC", word.lower() if self.lowers_case else word)


UNCASED = Normalization(lowers_case=True, deletes_accents=True)


def read_normalization(config: TokenizerConfig) -> Normalization | None:
    """Return how a run's tokenizer normalizes words; None if it needs a tokenizer.json that is unreadable."""
    if config.path is None and config.name is None:
        return Normalization(config.lowercase, config.strip_accents)
    if (file := tokenizer_file(config)) is not None:
        return _read_tokenizer_file(file)
    return UNCASED if config.path is None and config.name in KNOWN_SIZES else None


def _read_tokenizer_file(file: Path) -> Normalization | None:
    try:
        steps = _normalizer_steps(read_content(file).get("normalizer"))
    except UnreadableError:
        return None
    return Normalization(
        lowers_case=any(lowers for lowers, _ in steps), deletes_accents=any(deletes for _, deletes in steps)
    )


def _normalizer_steps(normalizer: Any) -> list[tuple[bool, bool]]:
    """Return (lowers case, deletes accents) for each step of a normalizer of the tokenizers library.

    Empty if there is no normalizer.
    """
    if not isinstance(normalizer, Mapping):
        return []
    kind, lowers = normalizer.get("type"), normalizer.get("lowercase") is True
    if kind == "Sequence":
        return [step for each in normalizer.get("normalizers") or () for step in _normalizer_steps(each)]
    if kind == "BertNormalizer":
        deletes = normalizer.get("strip_accents")
        return [(lowers, lowers if deletes is None else deletes is True)]
    return [(kind == "Lowercase", kind == "StripAccents")]
