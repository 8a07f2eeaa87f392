from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data import packing
from neobert.data.packing import pack


def mix(median: int, count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(np.log(median), 0.85, count)
    return np.clip(drawn, 3, 1024).astype(np.int64)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int | None]:
    capacity = draw(st.integers(1, 300))
    kind = draw(st.sampled_from(["any", "short", "long", "equal"]))
    low, high = {
        "any": (1, capacity),
        "short": (1, min(5, capacity)),
        "long": (capacity // 2 + 1, capacity),
    }.get(kind, (draw(st.integers(1, capacity)),) * 2)
    count = draw(st.one_of(st.integers(0, 60), st.integers(600, 2500)))
    seed = draw(st.integers(0, 2**32 - 1))
    lengths = np.random.default_rng(seed).integers(low, high, count, endpoint=True)
    return lengths, capacity, draw(st.none() | st.integers(1, 40))


@given(problems(), st.booleans())
def test_every_document_is_packed_once_within_capacity_and_slots(problem, keep_order):
    lengths, capacity, limit = problem
    plan = pack(lengths, capacity, limit, keep_order=keep_order)
    assert np.array_equal(np.sort(plan.documents), np.arange(len(lengths)))
    counts = np.diff(plan.offsets)
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == len(lengths)
    assert (counts > 0).all()
    assert counts.max(initial=0) <= (limit or len(lengths))
    sums = [int(lengths[plan.members(index)].sum()) for index in range(plan.num_bins)]
    assert max(sums, default=0) <= capacity
    assert plan.num_tokens == sum(sums)


@given(problems())
def test_a_plan_is_a_function_of_its_arguments(problem):
    first, second = pack(*problem), pack(*problem)
    assert np.array_equal(first.documents, second.documents)
    assert np.array_equal(first.offsets, second.offsets)


@given(problems())
def test_kept_order_is_the_order_given(problem):
    assert np.array_equal(pack(*problem, keep_order=True).documents, np.arange(len(problem[0])))


@pytest.mark.parametrize("median", [150, 400])
def test_fill_on_the_two_mixes(median):
    lengths = mix(median, 60_000)
    plan = pack(lengths, 16 * 1024, int(1.45 * 16 * 1024 / lengths.mean()))
    assert plan.fill >= 0.995


def test_fill_of_paragraphs_among_whole_contexts():
    """Text files: a tenth of the segments are cut from long runs, the others are short paragraphs."""
    draw = np.random.default_rng(0)
    lengths = np.where(draw.random(50_000) < 0.1, 1024, np.clip(draw.lognormal(3.7, 0.9, 50_000), 3, 1024))
    assert pack(lengths.astype(np.int64), 16 * 1024, 240).fill >= 0.995


def test_closing_gaps_is_what_fills(monkeypatch):
    lengths = mix(400, 60_000)
    monkeypatch.setattr(packing, "CLOSING_ROUNDS", 0)
    assert pack(lengths, 16 * 1024).fill < 0.995


@pytest.mark.parametrize("count", [1, 40, 300, 3000])
def test_at_most_one_bin_in_fifty_more_than_the_tokens_need(count):
    lengths = mix(150, count)
    needed = -(-int(lengths.sum()) // (16 * 1024))
    assert pack(lengths, 16 * 1024).num_bins <= needed + 1 + needed // 50


@pytest.mark.parametrize(
    ("lengths", "limit", "says"),
    [([0, 3], None, "without tokens"), ([3, 9], None, "does not fit"), ([3], 0, "at least one")],
)
def test_what_cannot_be_packed_is_refused(lengths, limit, says):
    with pytest.raises(ValueError, match=says):
        pack(np.array(lengths), 8, limit)
