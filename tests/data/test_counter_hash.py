from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.batches.stateless_random import permutation_slice, random_words, stream_key


@given(st.integers(0, 2**64 - 1), st.integers(1, 3000), st.data())
def test_windows_of_a_permutation_make_the_whole(key, size, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    edges = [0, *cuts, size]
    parts = [permutation_slice(key, start, stop, size) for start, stop in pairwise(edges)]
    whole = np.concatenate(parts)
    assert np.array_equal(whole, permutation_slice(key, 0, size, size))
    assert np.array_equal(np.sort(whole), np.arange(size))


def test_another_key_is_another_permutation():
    first, second = (permutation_slice(stream_key(0, epoch), 0, 1000, 1000) for epoch in (0, 1))
    assert (first == second).mean() < 0.02


def test_a_permutation_is_spread():
    """The first tenth of the order comes from all tenths of the text, about equally."""
    head = permutation_slice(stream_key(3), 0, 10_000, 100_000)
    counts = np.bincount(head // 10_000, minlength=10)
    assert abs(counts - 1000).max() < 150


def test_keys_tell_integers_and_their_order_apart():
    keys = {stream_key(*parts) for parts in [(0,), (1,), (-1,), (0, 1), (1, 0), (2**40,), ()]}
    assert len(keys) == 7


def test_the_order_never_changes_between_versions():
    """Checkpoints hold cursors into this order: a change of these numbers breaks every resume."""
    assert permutation_slice(stream_key(1, 2), 0, 8, 100).tolist() == [93, 14, 85, 60, 22, 44, 23, 10]
    assert random_words(stream_key(1), np.arange(2)).tolist() == [5779595845675608428, 16480827157854505512]


def test_every_bit_is_fair():
    words = random_words(stream_key(5), np.arange(20_000))
    for bit in range(64):
        share = ((words >> np.uint64(bit)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 0.02
