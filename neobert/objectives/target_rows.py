"""Static number of decoder rows for the targets of a packed microbatch, so that nothing recompiles."""

from __future__ import annotations

from math import ceil, sqrt

MULTIPLE = 128
SPREAD = 6.0
"""Standard deviations of room above the expected targets: one microbatch in a billion needs more."""


def most_targets(num_tokens: int, probability: float) -> int:
    """Return the most targets among T tokens, each a target with this probability."""
    expected = num_tokens * probability
    return min(num_tokens, ceil(expected + SPREAD * sqrt(expected * (1 - probability))))


def target_capacity(num_tokens: int, probability: float) -> int:
    """Return the rows that the decoder gets for T tokens, each a target with this probability."""
    return min(num_tokens, MULTIPLE * ceil(most_targets(num_tokens, probability) / MULTIPLE))


def rows_for(num_targets: int, capacity: int | None, num_tokens: int) -> int:
    """Return the rows for this many targets: the capacity, or the multiple of it that holds them all.

    A microbatch beyond the capacity costs a compilation of its own; it never loses a target. Without a
    capacity there is a row for every target, and no other.
    """
    if capacity is None:
        return num_targets
    return min(num_tokens, capacity * max(1, ceil(num_targets / capacity)))
