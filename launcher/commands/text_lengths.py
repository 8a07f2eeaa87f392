"""Estimates of the lengths of texts in tokens, from their sizes in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from launcher.commands.starter_file import BYTES_PER_TOKEN

MIN_BYTES_PER_TOKEN = 3
"""Of English text in WordPiece, and of one character per token in Chinese: rather too long than cut."""
COVERED = 0.99
"""Share of the texts that the length covers."""
MIN_TOKENS, SPECIAL_TOKENS = 32, 2


def covering_length(lengths: Sequence[int]) -> int:
    """Return the smallest power of two that covers the texts in tokens."""
    covered = sorted(lengths)[int(COVERED * (len(lengths) - 1))]
    return int(2 ** math.ceil(math.log2(max(MIN_TOKENS, max_tokens(covered)))))


def lost_share(lengths: Sequence[int], length: int) -> float:
    """Return the share of the bytes that are in texts of more than `length` tokens."""
    return sum(each for each in lengths if max_tokens(each) > length) / max(1, sum(lengths))


def mean_tokens(lengths: Sequence[int], length: int) -> float:
    """Return the mean length of a text in tokens, of which at most `length` are kept."""
    tokens = [min(length, num_bytes / BYTES_PER_TOKEN + SPECIAL_TOKENS) for num_bytes in lengths]
    return sum(tokens) / len(tokens)


def max_tokens(num_bytes: int) -> int:
    """Return the tokens of a text of many tokens for its size."""
    return math.ceil(num_bytes / MIN_BYTES_PER_TOKEN)
