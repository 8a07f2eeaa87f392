"""Share of the 13-grams of texts that also occur in a training text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

GRAM = 13
WORD = re.compile(r"\w+")


def shared_grams(held_out: Mapping[str, Iterable[str]], training: Iterable[str]) -> dict[str, float]:
    """Return the share of the distinct 13-grams of each held-out text that occur in the training texts."""
    wanted = {name: {gram for text in texts for gram in grams(text)} for name, texts in held_out.items()}
    every = set().union(*wanted.values())
    there = {gram for text in training for gram in grams(text) if gram in every}
    return {name: len(each & there) / max(1, len(each)) for name, each in wanted.items()}


def grams(text: str) -> Iterator[tuple[str, ...]]:
    """Yield all runs of 13 words, case and punctuation ignored."""
    words = WORD.findall(text.lower())
    return zip(*(words[first:] for first in range(GRAM)), strict=False)
