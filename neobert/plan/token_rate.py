"""Bytes per token of texts, measured with the tokenizers library, which the launcher imports only here."""

from __future__ import annotations

from collections.abc import Sequence

from neobert.config.schema import TokenizerConfig
from neobert.plan.vocabulary import tokenizer_file

BYTES_PER_TOKEN = 4.0
"""Bytes of text per token, typical of English text in WordPiece."""


def bytes_per_token(texts: Sequence[str], config: TokenizerConfig) -> float:
    """Measure the UTF-8 bytes per token of texts; if not possible, return the value for English WordPiece."""
    file = tokenizer_file(config)
    if file is None:
        return BYTES_PER_TOKEN
    from tokenizers import Tokenizer  # 0.02 s, for `init` only

    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # files of sentence-transformers have it, and padding
        tokenizer.no_padding()
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    except Exception:  # what the library raises; the preparation of the text says what is wrong
        return BYTES_PER_TOKEN
    num_tokens = sum(len(each.ids) for each in encodings)
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return num_bytes / num_tokens if num_tokens else BYTES_PER_TOKEN
