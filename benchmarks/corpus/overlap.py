"""Share of the 13-grams of texts that also occur in a training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

GRAM = 13
WORD = re.compile(r"\w+")


def shared_ngram_shares(held_out: Mapping[str, Iterable[str]], training: Iterable[str]) -> dict[str, float]:
    """Return, per held-out text, the share of its distinct 13-grams that also occur in the training text."""
    wanted = {
        name: {gram for text in texts for gram in word_ngrams(text)} for name, texts in held_out.items()
    }
    every = set().union(*wanted.values())
    there = {gram for text in training for gram in word_ngrams(text) if gram in every}
    return {name: len(each & there) / max(1, len(each)) for name, each in wanted.items()}


def word_ngrams(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every sequence of 13 words, ignoring case and punctuation."""
    words = WORD.findall(text.lower())
    return zip(*(words[first:] for first in range(GRAM)), strict=False)
