"""Stateless counter-based random numbers (splitmix64).

Order and masks are independent of resumes, thread counts and numpy versions, because there is no state.
The mixer is the finaliser of splitmix64 (Steele, Lea and Flood, 2014); all arithmetic is modulo 2**64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_ODD = 0xD1B54A32D192ED03
_WORD = 0xFFFFFFFFFFFFFFFF
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_FEISTEL_ROUNDS = 6


def mix_bits(words: Words) -> Words:
    """Hash 64-bit words [n]; flipping one input bit flips about half of the output bits."""
    words = (words ^ (words >> _SHIFT_1)) * _MULTIPLY_1
    words = (words ^ (words >> _SHIFT_2)) * _MULTIPLY_2
    return words ^ (words >> _SHIFT_3)


def stream_key(*parts: int) -> int:
    """Combine integers, which may be negative, into the 64-bit key of a random stream."""
    key = 0
    for part in parts:
        word = ((key + _GOLDEN) ^ (part * _ODD)) & _WORD
        key = int(mix_bits(np.array([word], dtype=np.uint64))[0])
    return key


def random_words(key: int, counters: NDArray[np.integer]) -> Words:
    """Return the random words at the positions `counters` [n] of the stream `key`, uint64 [n]."""
    return mix_bits(counters.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def permutation_slice(key: int, start: int, stop: int, size: int) -> NDArray[np.int64]:
    """Return the entries `start` to `stop` of a pseudo-random permutation of `range(size)`.

    Uses a Feistel network over the next even power of two, applied again until the result is in range. The
    whole permutation is never in memory: the cost depends on `stop - start`, not on `size`.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    places = np.arange(start, stop, dtype=np.uint64)
    outside = np.arange(len(places))
    while len(outside):
        places[outside] = _feistel(key, places[outside], half_bits)
        outside = outside[places[outside] >= np.uint64(size)]
    return places.astype(np.int64)


def _feistel(key: int, words: Words, half_bits: int) -> Words:
    shift, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & low
    for turn in range(_FEISTEL_ROUNDS):
        left, right = right, left ^ (random_words(stream_key(key, turn), right) & low)
    return (left << shift) | right
