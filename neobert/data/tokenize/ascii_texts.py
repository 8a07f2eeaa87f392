"""A tokenizer for ASCII texts, without the normalization that does not change ASCII.

Accents and Unicode forms are looked up for each character, which takes a fifth of a BERT
tokenizer's time.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

_UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents"})


def ascii_tokenizer(backend: Tokenizer) -> Tokenizer | None:
    """Return a faster tokenizer with the same tokens for ASCII texts, or None.

    None if no normalization can be left out, or if an added token is not ASCII.
    """
    content = json.loads(backend.to_str())
    normalizer = _ascii_normalizer(content["normalizer"])
    # The normalizer also changes added tokens, and "café" may be "cafe" to the whole normalizer only.
    is_ascii = all(token["content"].isascii() for token in content["added_tokens"])
    if normalizer == content["normalizer"] or not is_ascii:
        return None
    return Tokenizer.from_str(json.dumps(content | {"normalizer": normalizer}))


def _ascii_normalizer(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a normalizer's description without the steps that do not change ASCII; None if none is left."""
    if normalizer is None or normalizer["type"] in _UNICODE_FORMS:
        return None
    if normalizer["type"] == "Sequence":
        steps = filter(None, map(_ascii_normalizer, normalizer["normalizers"]))
        return normalizer | {"normalizers": list(steps)}
    if normalizer["type"] == "BertNormalizer":
        return normalizer | {"handle_chinese_chars": False, "strip_accents": False}
    return normalizer
