"""Bytes per token of texts, estimated from the vocabulary of a tokenizer without loading it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from neobert.config.schema import TokenizerConfig
from neobert.plan.normalization import UNCASED, normalization_of
from neobert.plan.vocabulary import token_ids, tokenizer_file

BYTES_PER_TOKEN = 4.0
"""Typical of English text in WordPiece."""
WORDS = re.compile(r"\w+|[^\w\s]")
SPACED_WORDS = re.compile(r" ?[^\W\d_]+| ?\d+| ?[^\w\s]+|_|\s+")
"""Words of tokenizers that drop white space, and of those whose tokens have it."""
CONTINUED, WORD_STARTS = "##", ("\u0120", "\u2581")
"""Marks of tokens inside a word (WordPiece), or after a space (byte-level, unigram)."""


def bytes_per_token(texts: Sequence[str], config: TokenizerConfig) -> float:
    """Return the bytes of UTF-8 per token of the texts: of English in WordPiece if that is not known.

    Each word is cut into the longest tokens from its start, as WordPiece does; others come close.
    """
    file = tokenizer_file(config)
    vocabulary = token_ids(file) if file is not None else {}
    normalization = normalization_of(config) or UNCASED
    words = _Words(vocabulary)
    found = Counter(word for text in texts for word in words.pattern.findall(text))
    num_tokens = sum(words.cut(normalization.of(word)) * number for word, number in found.items())
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return num_bytes / num_tokens if vocabulary and num_tokens else BYTES_PER_TOKEN


class _Words:
    """Words of a vocabulary's tokenizer, cut into tokens."""

    def __init__(self, vocabulary: Collection[str]) -> None:
        self.vocabulary = vocabulary
        marks = Counter(token[: len(mark)] for token in vocabulary for mark in (CONTINUED, *WORD_STARTS))
        self.start = max((CONTINUED, *WORD_STARTS), key=lambda mark: marks[mark])
        self.is_wordpiece, self.has_bytes = self.start == CONTINUED, self.start == WORD_STARTS[0]
        self.pattern = WORDS if self.is_wordpiece else SPACED_WORDS
        self.longest = max(map(len, vocabulary), default=1)

    def cut(self, word: str) -> int:
        """Return the number of tokens of a word."""
        if self.has_bytes:
            word = "".join(_BYTE_SYMBOLS[byte] for byte in word.encode("utf-8", "replace"))
        elif not self.is_wordpiece:
            word = word.replace(" ", self.start)
        count, place = 0, 0
        while place < len(word):
            mark = CONTINUED if place and self.is_wordpiece else ""
            stop = min(len(word), place + self.longest)
            while stop > place and mark + word[place:stop] not in self.vocabulary:
                stop -= 1
            if stop == place and self.is_wordpiece:
                return 1  # the token of unknown words
            place, count = max(stop, place + 1), count + 1
        return count


def _byte_symbols() -> Mapping[int, str]:
    """Return the character that stands for each byte in byte-level vocabularies."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in shown else next(others)) for byte in range(256)}


_BYTE_SYMBOLS = _byte_symbols()
