"""Examples of several segments: each text once, in bounds of its own, and no example in two microbatches."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.config import from_dict
from neobert.data.batches import mixture
from neobert.data.batches.microbatch import Assembler, Microbatch
from neobert.data.batches.mixture import CorpusSlice, MixedText, MixedWindows
from neobert.data.batches.prefetch import WorkerThreads
from neobert.data.batches.shape import BatchShape, batch_shape
from neobert.data.batches.targets import IGNORED, Targets
from neobert.data.batches.windows import Cursor, PreparedWindows, WindowSource, microbatch_positions
from neobert.data.store.split_writer import SplitWriter
from neobert.data.store.token_store import LengthStatistics, TokenStore, open_split
from neobert.data.tokenize.encoding import GROUP, Column, Counts, Encoded
from neobert.tasks.specs import SPECS
from tests.refusals import refusal_of

COLUMN = Column(GROUP, "uint16", is_per_token=False)
ROW = 16


class FirstTexts:
    """Label the first text of each example with its length."""

    labels_tokens = False

    def targets(self, segments, *, epoch: int, seed: int) -> Targets:
        is_first = segments.columns[GROUP] == 0
        return Targets(segments.ids, np.where(is_first, segments.lengths, IGNORED))


def encode(sizes: list[int], seed: int) -> Encoded:
    """Return examples of `sizes` texts: the tokens of text n are 100 n, 100 n + 1, ..."""
    lengths = np.random.default_rng(seed).integers(1, ROW + 1, sum(sizes))
    tokens = np.concatenate([100 * number + np.arange(length) for number, length in enumerate(lengths)])
    places = np.concatenate([np.arange(size) for size in sizes])
    return Encoded(tokens.astype(np.uint32), lengths, Counts(), columns={GROUP: places.astype(np.uint16)})


@st.composite
def stores(draw: st.DrawFn) -> tuple[TokenStore, list[int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=60))
    return TokenStore.from_batches([encode(sizes, draw(st.integers(0, 99)))], (COLUMN,)), sizes


shapes = st.builds(
    lambda rows, most, is_packed: BatchShape(
        rows, ROW, most if is_packed else rows // 4, is_packed=is_packed, texts=4
    ),
    rows=st.integers(4, 9),
    most=st.integers(1, 12),
    is_packed=st.booleans(),
)


def walk(
    source: WindowSource, store: TokenStore, shape: BatchShape, cursor: Cursor, *, windows: float = math.inf
) -> list[Microbatch]:
    """Build the microbatches from a cursor to the end of its epoch, or of `windows` windows."""
    assembler = Assembler(shape, FirstTexts(), 0, 0, 1 << 20)
    found = []
    for window, index, after in microbatch_positions(
        source, cursor, WorkerThreads(0, ""), lambda f: f.result()
    ):
        if window.start.epoch > 0 or window.start.window >= windows:
            return found
        found.append(assembler.build(store, window.members(index), window.offsets(index), 0, after))
    return found


def texts_of(batch: Microbatch) -> list[list[int]]:
    """Return the tokens of each text of a microbatch; its positions count from 0."""
    if batch.cu_seqlens is None:
        parts = [(row, batch.attention_mask[row]) for row in range(batch.num_segments)]
    else:
        bounds = batch.cu_seqlens.tolist()
        parts = [slice(*bounds[text : text + 2]) for text in range(batch.num_segments)]
    assert all(batch.position_ids[part].tolist() == list(range(len(batch.input_ids[part]))) for part in parts)
    return [batch.input_ids[part].tolist() for part in parts]


@given(stores(), shapes, st.integers(0, 99), st.sampled_from([1000, 7]))
def test_an_epoch_holds_every_text_once_and_no_example_in_two_microbatches(made, shape, seed, window):
    store, sizes = made
    firsts = np.cumsum([0, *sizes])
    batches = walk(PreparedWindows(store, shape, seed, window), store, shape, Cursor())
    found = [number for batch in batches for number in batch.sample_ids.tolist()]
    assert sorted(found) == list(range(sum(sizes)))
    for batch in batches:
        texts = texts_of(batch)
        assert texts == [store.segment(number).tolist() for number in batch.sample_ids]
        groups, num_texts = batch.groups.tolist(), batch.num_segments
        examples = np.searchsorted(firsts, batch.sample_ids.numpy(), "right") - 1
        numbers, where = np.unique(examples, return_inverse=True)
        order = {example: place for place, example in enumerate(dict.fromkeys(examples.tolist()))}
        assert groups[:num_texts] == [order[each] for each in examples.tolist()]
        assert set(groups[num_texts:]) <= {-1}
        assert np.bincount(where).tolist() == [sizes[each] for each in numbers]
        assert batch.num_targets == len(numbers)
        labels = [
            len(text) if number in firsts else IGNORED
            for text, number in zip(texts, batch.sample_ids.tolist(), strict=True)
        ]
        assert batch.labels.tolist() == labels + [IGNORED] * (len(groups) - num_texts)
        assert len(groups) == (shape.num_slots if shape.is_packed else len(batch.input_ids))


@given(stores(), shapes, st.data())
def test_any_cursor_resumes_with_whole_examples(made, shape, data):
    store, _ = made
    source = PreparedWindows(store, shape, 5, 20)
    batches = walk(source, store, shape, Cursor())
    place = data.draw(st.integers(0, len(batches) - 1))
    cursor = Cursor.from_dict(batches[place].cursor.to_dict())
    resumed = [] if cursor.epoch else walk(source, store, shape, cursor)
    assert [b.sample_ids.tolist() for b in resumed] == [b.sample_ids.tolist() for b in batches[place + 1 :]]


@given(stores())
def test_passes_of_a_mixture_have_other_sample_ids(made):
    store, sizes = made
    shape = BatchShape(4, ROW, 8, is_packed=True, texts=4)
    text = MixedText(store, (CorpusSlice("all", 1.0, 0, len(sizes), store.num_tokens),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "MIN_MICROBATCHES", 8)
        batches = walk(MixedWindows(text, shape, 1), store, shape, Cursor(), windows=3)
    ids = [each for batch in batches for each in batch.sample_ids.tolist()]
    assert len(set(ids)) == len(ids)
    assert set(np.array(ids) % store.num_segments) == set(range(sum(sizes)))


def test_a_written_store_has_the_examples_of_one_in_memory(tmp_path):
    batches = [encode([2, 1, 3], 0), encode([4, 1], 1)]
    writer = SplitWriter(tmp_path, "train", np.dtype(np.uint32), (COLUMN,))
    for batch in batches:
        writer.append(batch)
    described, expected = writer.finish(), TokenStore.from_batches(batches, (COLUMN,))
    store = open_split(tmp_path, "train", described)
    every = np.arange(len(expected))
    assert (len(store), store.num_segments) == (5, 11) == (len(expected), described["segments"])
    assert store.lengths(every).tolist() == expected.lengths(every).tolist()
    assert store.statistics == pytest.approx(expected.statistics)
    assert store.gather(every).groups.tolist() == [0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("is_packed", [True, False])
def test_an_example_with_more_texts_than_rows_is_refused(monkeypatch, is_packed):
    monkeypatch.setitem(SPECS, "pretrain", replace(SPECS["pretrain"], texts=lambda _config: 3))
    config = from_dict({"datacollator": {"pack_sequences": is_packed}})
    statistics = LengthStatistics(30.0, 5.0, 60)
    assert batch_shape(config, 3, statistics).value.texts == 3
    refusal_of(batch_shape, "DAT004", "up to 3 texts, but a microbatch has 2 rows", config, 2, statistics)
