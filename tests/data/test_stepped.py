"""Mixtures whose steps read one corpus each: shares, order, sizes, and resumes at any microbatch."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from neobert.data.batches.mixture import CorpusSlice
from neobert.data.batches.prefetch import WorkerThreads
from neobert.data.batches.shape import BatchShape
from neobert.data.batches.stepped import WINDOW_STEPS, SteppedText, SteppedWindows
from neobert.data.batches.windows import Cursor, microbatch_positions
from neobert.data.store.token_store import LengthStatistics, TokenStore

SIZES, MEANS, WEIGHTS, PER_STEP = (400, 90, 7), (6, 20, 9), (3.0, 1.0, 0.01), 4
PACKED = BatchShape(rows=4, row_length=32, max_examples=24, is_packed=True)
PADDED = BatchShape(rows=8, row_length=32, max_examples=8, is_packed=False)


@pytest.fixture(scope="module")
def text() -> SteppedText:
    draw = np.random.default_rng(5)
    sizes = zip(MEANS, SIZES, strict=True)
    lengths = np.concatenate([draw.integers(mean // 2, mean + mean // 2, size) for mean, size in sizes])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    store = TokenStore(np.zeros(offsets[-1], np.uint16), offsets, LengthStatistics.from_lengths(lengths))
    stops = np.cumsum(SIZES)
    rows = zip("abc", WEIGHTS, stops - SIZES, stops, strict=True)
    return SteppedText(
        store, tuple(CorpusSlice(*row, int(offsets[row[3]] - offsets[row[2]])) for row in rows)
    )


def steps_of(text, shape, count, start=None):
    """Return the examples of each microbatch of the first steps, and the cursor after each step."""
    source = SteppedWindows(text, shape, 3, PER_STEP)
    begin = start or text.with_token_counts(Cursor())
    places = microbatch_positions(source, begin, WorkerThreads(0, "window"), lambda done: done.result())
    places = islice(places, count * PER_STEP)
    found = [(window.members(index), cursor) for window, index, cursor in places]
    return [found[first : first + PER_STEP] for first in range(0, len(found), PER_STEP)]


@pytest.mark.parametrize("shape", [PACKED, PADDED], ids=["packed", "padded"])
def test_a_step_reads_one_corpus_and_no_example_twice(text, shape):
    stops, taken = np.cumsum(SIZES), Counter[int]()
    source = SteppedWindows(text, shape, 3, PER_STEP)
    steps = steps_of(text, shape, 2 * WINDOW_STEPS)
    for step in steps:
        examples = np.concatenate([members for members, _ in step])
        (corpus,) = {*np.searchsorted(stops, examples, side="right").tolist()}
        assert len({*examples.tolist()}) == len(examples)
        assert 0.9 * source.sizes[corpus] <= len(examples) <= source.sizes[corpus]
        for members, _ in step:
            assert text.store.lengths(members).sum() <= shape.capacity or not shape.is_packed
            assert len(members) <= shape.max_examples
        taken[corpus] += 1
    shares = [taken[corpus] / len(steps) for corpus in range(len(SIZES))]
    assert shares == pytest.approx([float(share) for share in text.shares], abs=2 / WINDOW_STEPS)


def test_a_pass_over_a_corpus_has_no_example_twice(text):
    num_steps = SIZES[0] // SteppedWindows(text, PADDED, 3, PER_STEP).sizes[0]
    steps = [np.concatenate([members for members, _ in step]) for step in steps_of(text, PADDED, 40)]
    passed = np.concatenate([step for step in steps if step[0] < SIZES[0]][:num_steps])
    assert len({*passed.tolist()}) == len(passed) > SIZES[0] // 2


@pytest.mark.parametrize("index", [1, 4, 10, WINDOW_STEPS * PER_STEP - 1, WINDOW_STEPS * PER_STEP + 2])
def test_a_resume_continues_at_any_microbatch(text, index):
    found = [place for step in steps_of(text, PACKED, WINDOW_STEPS + 4) for place in step]
    resumed = [place for step in steps_of(text, PACKED, 2, found[index - 1][1]) for place in step]
    for (members, cursor), (expected, after) in zip(resumed, found[index:], strict=False):
        assert members.tolist() == expected.tolist()
        assert cursor == after


def test_the_share_of_a_rare_corpus_is_kept_over_windows(text):
    rare = sum(
        step[0][0].min(initial=0) >= sum(SIZES[:2]) for step in steps_of(text, PADDED, 4 * WINDOW_STEPS)
    )
    assert rare == int(text.shares[2] * 4 * WINDOW_STEPS)
