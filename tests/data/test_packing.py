from functools import partial
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config.schema import RunConfig
from neobert.data.batches import packing, windows
from neobert.data.batches.best_fit import best_fit_decreasing
from neobert.data.batches.packing import Indices, is_full, pack, pack_evenly
from neobert.data.batches.shape import batch_shape, with_enough_slots
from neobert.data.store.token_store import LengthStatistics

PACKERS = {
    "pack": pack,
    "in order": partial(pack, keep_order=True),
    **{f"number {number}": packer for number, packer in windows.PACKERS.items()},
}


def mix(median: int, count: int) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(median), 0.85, count)
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


@given(problems(), st.sampled_from(sorted(PACKERS)))
def test_every_document_is_packed_once_within_capacity_and_slots(problem, packer):
    lengths, capacity, limit = problem
    plan = PACKERS[packer](lengths, capacity, limit)
    assert np.array_equal(np.sort(plan.documents), np.arange(len(lengths)))
    counts = np.diff(plan.offsets)
    assert plan.offsets[0] == 0
    assert plan.offsets[-1] == len(lengths)
    assert (counts > 0).all()
    assert counts.max(initial=0) <= (limit or len(lengths))
    sums = [int(lengths[plan.members(index)].sum()) for index in range(plan.num_bins)]
    assert max(sums, default=0) <= capacity
    assert plan.num_tokens == sum(sums)
    assert plan.fill == (sum(sums) / (len(sums) * capacity) if sums else 0.0)


@given(problems(), st.sampled_from(sorted(PACKERS)))
def test_a_plan_is_a_function_of_its_arguments(problem, packer):
    first, second = PACKERS[packer](*problem), PACKERS[packer](*problem)
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
    [([0, 3], None, "without tokens"), ([3, 9], None, "exceeds the bin"), ([3], 0, "at least one")],
)
def test_what_cannot_be_packed_is_refused(lengths, limit, says):
    with pytest.raises(ValueError, match=says):
        pack(np.array(lengths), 8, limit)


def short_and_long(draw: np.random.Generator, count: int) -> Indices:
    return np.where(draw.random(count) < 0.3, draw.integers(600, 1025, count), draw.integers(8, 200, count))


MIXES = {
    "uniform": lambda draw, count: draw.integers(1, 1025, count),
    "bimodal": short_and_long,
    "lognormal": lambda draw, count: np.clip(draw.lognormal(5.0, 0.85, count), 3, 1024).astype(np.int64),
    "short": lambda draw, count: draw.integers(3, 65, count),
}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("mix_name", MIXES)
def test_microbatches_of_few_rows_are_full_too(mix_name, rows):
    lengths = MIXES[mix_name](np.random.default_rng(0), 60_000)
    shape = batch_shape(RunConfig(), rows, LengthStatistics.from_lengths(lengths)).value
    assert pack_evenly(lengths, shape.capacity, shape.max_examples).fill >= 0.99


def test_documents_keep_their_random_company_where_that_fills_the_bins():
    lengths = mix(150, 20_000)
    in_order, dense = (packer(lengths, 16 * 1024, 150) for packer in (pack, pack_evenly))
    assert np.array_equal(dense.documents, in_order.documents)


@given(problems())
def test_packing_evenly_takes_no_more_bins_than_in_order(problem):
    assert pack_evenly(*problem).num_bins <= pack(*problem).num_bins


@pytest.mark.parametrize("rows", [1, 2, 8])
@given(st.floats(0.05, 0.95), st.integers(16, 400), st.integers(0, 99))
@settings(max_examples=4)  # each packs thousands of documents a few times
def test_short_documents_among_whole_rows_fill_their_microbatches(rows, share, longest, seed):
    """Lengths far apart: what fails in order, and best fit for want of slots."""
    draw = np.random.default_rng(seed)
    lengths = np.where(draw.random(3000) < share, draw.integers(3, longest, 3000), 1024)
    drawn = batch_shape(RunConfig(), rows, LengthStatistics.from_lengths(lengths))
    shape = with_enough_slots(drawn, lengths, pack_evenly).value
    plan = pack_evenly(lengths, shape.capacity, shape.max_examples)
    assert is_full(plan) or plan.num_bins == plan.fewest_bins + 1


def test_slots_are_added_only_where_they_fill_microbatches():
    halves = np.where(np.random.default_rng(0).random(6000) < 0.5, 36, 1024)
    drawn = batch_shape(RunConfig(), 1, LengthStatistics.from_lengths(halves))
    assert pack_evenly(halves, 1024, drawn.value.max_examples).fill < 0.93
    more = with_enough_slots(drawn, halves, pack_evenly)
    assert (drawn.value.max_examples, more.value.max_examples) == (8, 24)
    assert "would fill only" in more.reason
    usual = mix(150, 6000)
    enough = batch_shape(RunConfig(), 4, LengthStatistics.from_lengths(usual))
    assert with_enough_slots(enough, usual, pack_evenly) is enough
    too_long = np.full(600, 600)  # one to a row, whatever the slots
    enough = batch_shape(RunConfig(), 1, LengthStatistics.from_lengths(too_long))
    assert with_enough_slots(enough, too_long, pack_evenly) is enough


def test_spread_documents_share_out_the_short_ones():
    """Best fit leaves the short documents to the last bins; spread, all bins hold about as many documents."""
    lengths = np.where(np.random.default_rng(0).random(4000) < 0.8, 30, 1000)
    _, bins, _ = best_fit_decreasing(lengths, 4096, len(lengths))
    assert np.diff(pack_evenly(lengths, 4096).offsets).max() < np.bincount(bins).max() / 2


@given(
    st.lists(st.integers(1, 60), max_size=80),
    st.integers(60, 150),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=5),
)
def test_best_fit_places_each_document_in_the_fullest_bin_that_takes_it(lengths, capacity, limit, started):
    """Also into bins that hold documents already: (tokens, documents)."""
    gaps = [capacity - load for load, _ in started]
    room = [limit - count for _, count in started]
    loads, counts = (np.array([each[part] for each in started], dtype=np.int64) for part in (0, 1))
    expected = []
    for length in sorted(lengths, reverse=True):
        fitting = [(gap, home) for home, gap in enumerate(gaps) if gap >= length and room[home] > 0]
        home = min(fitting)[1] if fitting else len(gaps)
        if not fitting:
            gaps.append(capacity)
            room.append(limit)
        gaps[home] -= length
        room[home] -= 1
        expected.append(home)
    documents, bin_of, num_bins = best_fit_decreasing(
        np.array(lengths, dtype=np.int64), capacity, limit, loads, counts
    )
    assert documents.tolist() == sorted(range(len(lengths)), key=lambda each: -lengths[each])
    assert (bin_of.tolist(), num_bins) == (expected, len(gaps))


def short_and_whole() -> np.ndarray:
    is_short = np.random.default_rng(0).random(5000) < 0.8
    return np.where(is_short, np.random.default_rng(1).integers(8, 64, 5000), 1024)


@pytest.mark.parametrize(
    ("packer", "lengths", "capacity", "limit", "digest"),
    [
        (pack, mix(150, 5000), 16384, 130, "bd0b6bb51c964d8b"),
        (pack, mix(400, 5000), 1024, 8, "11a55db38c761875"),
        (pack, mix(150, 5000), 2048, None, "eda25cad34b67e4a"),
        (pack, mix(150, 512), 1024, None, "c3a2255af241e51f"),
        (pack, mix(150, 513), 1024, None, "f3b35098907d91be"),
        (pack_evenly, mix(150, 5000), 16384, 130, "a6a6b99db02f4765"),
        (pack_evenly, mix(400, 5000), 1024, 8, "5ac13a83c9002a1e"),
        (pack_evenly, short_and_whole(), 1024, 24, "278b9a4566cd56f0"),
        (pack_evenly, short_and_whole(), 2048, 32, "b4b27a6f6d77e24f"),
    ],
)
def test_packers_pack_as_they_always_have(packer, lengths, capacity, limit, digest):
    """Runs that started with one resume with it, to the same bits."""
    plan = packer(lengths, capacity, limit)
    assert sha256(plan.documents.tobytes() + plan.offsets.tobytes()).hexdigest()[:16] == digest
