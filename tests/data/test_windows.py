"""Windows of packed text: any cursor resumes the order, with the packer that the run started with."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config.schema import DataCollatorConfig, RunConfig, TrainerConfig
from neobert.data.batches.prefetch import WorkerThreads
from neobert.data.batches.shape import batch_shape
from neobert.data.batches.windows import (
    Cursor,
    FixedWindows,
    PreparedWindows,
    microbatch_positions,
    training_shape,
)
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.errors import ProjectError

LENGTHS = np.random.default_rng(0).integers(1, 1025, 3000)
OFFSETS = np.concatenate(([0], np.cumsum(LENGTHS)))
STORE = TokenStore(np.zeros(0, np.uint16), OFFSETS, LengthStatistics.from_lengths(LENGTHS))
ONE_ROW = batch_shape(RunConfig(), 1, STORE.statistics).value
SOURCE = PreparedWindows(STORE, ONE_ROW, seed=3, window_examples=750)


def walk(cursor: Cursor, count: int, source=SOURCE) -> list[tuple[tuple[int, ...], Cursor]]:
    """Read microbatches from a cursor on: (places in the store, cursor after it)."""
    places = microbatch_positions(source, cursor, WorkerThreads(0, "none"), lambda future: future.result())
    return [(tuple(window.members(index)), after) for window, index, after in islice(places, count)]


EPOCH = walk(Cursor(), sum(len(SOURCE.load(Cursor(0, window))) for window in range(4)))


def test_an_epoch_holds_every_segment_once_in_full_microbatches():
    assert sorted(place for members, _ in EPOCH for place in members) == list(range(len(LENGTHS)))
    assert LENGTHS.sum() / (len(EPOCH) * ONE_ROW.capacity) > 0.96


@settings(max_examples=20)  # each loads a window or two
@given(st.integers(0, len(EPOCH) - 4))
def test_any_cursor_resumes_a_dense_order(place):
    assert walk(Cursor.from_dict(EPOCH[place][1].to_dict()), 3) == EPOCH[place + 1 : place + 4]


PADDED = RunConfig(datacollator=DataCollatorConfig(pack_sequences=False))
ROWS = PreparedWindows(STORE, batch_shape(PADDED, 8, STORE.statistics).value, seed=3)


@settings(max_examples=10)
@given(st.integers(0, 370))
def test_padded_rows_of_a_microbatch_have_similar_lengths(place):
    epoch = walk(Cursor(), 375, ROWS)
    assert [len(members) for members, _ in epoch] == [8] * 375
    assert sorted(each for members, _ in epoch for each in members) == list(range(3000))
    assert walk(Cursor.from_dict(epoch[place][1].to_dict()), 3, ROWS) == epoch[place + 1 : place + 4]
    earlier = walk(Cursor(packer=3), 375, ROWS)
    padded, before = (
        sum(8 * max(LENGTHS[list(members)]) for members, _ in each) for each in (epoch, earlier)
    )
    assert padded < 1.1 * LENGTHS.sum() < 1.6 * LENGTHS.sum() < before
    other = {frozenset(members) for members, _ in walk(Cursor(epoch=1), 375, ROWS)}
    assert len(other & {frozenset(members) for members, _ in epoch}) < 4


def test_long_documents_are_spread_over_the_window():
    longest = [max(LENGTHS[list(members)]) for members, _ in EPOCH[:240]]
    assert abs(np.mean(longest[:120]) - np.mean(longest[120:])) < 0.15 * np.mean(longest)


def test_a_run_that_started_with_an_earlier_packer_keeps_it():
    start = Cursor(window=1, index=5, packer=3)
    assert {after.packer for _, after in walk(start, len(SOURCE.load(start)) + 3)} == {3}


def test_a_microbatch_has_slots_for_the_short_documents_between_long_ones():
    halves = np.where(np.random.default_rng(0).random(3000) < 0.5, 36, 1024)
    offsets = np.concatenate(([0], np.cumsum(halves)))
    text = TokenStore(np.zeros(0, np.uint16), offsets, LengthStatistics.from_lengths(halves))
    config = RunConfig(trainer=TrainerConfig(per_device_train_batch_size=1))
    assert batch_shape(config, 1, text.statistics).value.max_examples == 8
    assert training_shape(config, text).value.max_examples == 24


@pytest.mark.parametrize("packer", [2, 5])
def test_an_unknown_packer_is_refused(packer):
    with pytest.raises(ProjectError, match=r"packing algorithm .*this version supports 3, 4") as refused:
        Cursor.from_dict({"epoch": 0, "window": 0, "index": 0, "stream": None, "packer": packer})
    assert refused.value.code == "CKP007"


def test_evaluation_reads_the_text_in_its_order():
    """`trainer.eval_max_batches` takes the first microbatches: dense ones hold the longest documents."""
    window = FixedWindows(STORE, ONE_ROW).load(Cursor())
    assert np.array_equal(window.members(0), np.arange(len(window.members(0))))
