import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import DataCollatorConfig, DatasetConfig, RunConfig, TokenizerConfig
from neobert.data.batches.masking import MaskingRule
from neobert.data.batches.microbatch import Assembler
from neobert.data.batches.shape import batch_shape, segment_length, with_slots_for_pieces
from neobert.data.batches.targets import Targets
from neobert.data.batches.windows import Cursor, PreparedWindows
from neobert.data.store.token_store import LengthStatistics, TokenStore
from neobert.errors import ProjectError
from neobert.families.table import max_row_length

CONFIG = RunConfig(dataset=DatasetConfig(max_seq_length=64))
RULE = MaskingRule(0.2, False, 4, np.arange(5, 100), np.arange(100) >= 5)


def store_of(lengths: np.ndarray) -> TokenStore:
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return TokenStore(np.full(offsets[-1], 7, np.uint16), offsets, LengthStatistics.from_lengths(lengths))


@given(
    st.lists(st.tuples(st.integers(3, 64), st.integers(1, 40)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_every_microbatch_of_any_text_fits_its_slots(groups, rows, seed):
    """Whatever the lengths, skewed as they come, no layout overflows and no token is lost."""
    lengths = np.concatenate([np.full(count, length) for length, count in groups])
    store = store_of(lengths)
    shape = batch_shape(CONFIG, rows, store.statistics).value
    window = PreparedWindows(store, shape, seed).load(Cursor())
    assembler = Assembler(shape, RULE, seed, 0, len(RULE.is_maskable))
    batches = [assembler.build(store, window.members(i), 0, 0, Cursor()) for i in range(len(window))]
    assert sum(batch.num_tokens for batch in batches) == lengths.sum()
    assert {batch.cu_seqlens.shape for batch in batches} == {(shape.num_slots + 1,)}
    assert max(int(batch.cu_seqlens.diff().max()) for batch in batches) <= 64


@given(st.lists(st.integers(3, 64), min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 70))
def test_pieces_are_the_documents_cut_at_every_length(lengths, rows, length):
    """Of any text, in any microbatch: same tokens and labels, one shape, and no slot missing."""
    store = store_of(np.array(lengths))
    shape = with_slots_for_pieces(batch_shape(CONFIG, rows, store.statistics), length).value
    assembler = Assembler(shape, RULE, 0, 0, len(RULE.is_maskable))
    window = PreparedWindows(store, shape, 0).load(Cursor())
    for index in range(len(window)):
        whole = assembler.build(store, window.members(index), 0, 0, Cursor())
        cut = whole.split_segments(length)
        expected = [piece for n in store.lengths(window.members(index)) for piece in pieces_of(n, length)]
        assert cut.cu_seqlens.diff()[: cut.num_segments].tolist() == expected
        assert cut.cu_seqlens.shape == whole.cu_seqlens.shape == (shape.num_slots + 1,)
        assert (cut.cu_seqlens[0], cut.cu_seqlens[-1]) == (0, shape.capacity)
        assert cut.cu_seqlens.diff().max() <= min(length, 64)
        positions = np.concatenate([np.arange(piece) for piece in expected])
        assert cut.position_ids[: cut.num_tokens].tolist() == positions.tolist()
        assert torch.equal(cut.input_ids, whole.input_ids)
        assert torch.equal(cut.labels, whole.labels)


class Planted(NamedTuple):
    """A rule of another author, with these labels for 3 segments of 12 tokens."""

    labels: Any
    labels_tokens: bool = False

    def targets(self, segments, *, epoch, seed):
        return Targets(segments.ids, self.labels)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Planted(np.zeros(3, np.int64)), ""),
        (Planted(np.zeros(12, np.float32), labels_tokens=True), ""),
        (Planted(np.zeros(2, np.int64)), "labels int64 [2], expected int64 or float32 [3]"),
        (Planted(np.zeros(3, np.int64), labels_tokens=True), "int64 [3], expected int64 or float32 [12]"),
        (Planted(np.zeros(3, np.int32)), "labels int32 [3], expected int64 or float32 [3]"),
        (Planted([0, 0, 0]), "labels list, expected int64 or float32 [3]"),
    ],
)
def test_a_rule_that_returns_other_targets_is_refused_with_its_name(rule, message):
    """One label too few would give each text the label of another, and no later check could tell."""
    store = store_of(np.array([3, 4, 5]))
    shape = batch_shape(CONFIG, 1, store.statistics).value
    assembler = Assembler(shape, rule, 0, 0, 10)
    with pytest.raises(ProjectError, match=re.escape(message)) if message else nullcontext() as refused:
        assembler.build(store, np.arange(3), 0, 0, Cursor())
    if message:
        assert refused.value.place == f"{__name__}.Planted"


def pieces_of(num_tokens, length):
    return [min(length, num_tokens - start) for start in range(0, num_tokens, length)]


def test_slots_are_tight_for_a_usual_mix():
    """Documents of 217 tokens: 75 of them in 16 rows. With 1,025 slots attention takes half as long again."""
    shape = batch_shape(RunConfig(), 16, LengthStatistics(217.0, 185.0, 1024))
    assert 96 <= shape.value.num_slots <= 136
    assert "standard deviations" in shape.reason


def test_documents_of_one_length_need_no_room_to_spare():
    assert batch_shape(RunConfig(), 16, LengthStatistics(1024.0, 0.0, 1024)).value.max_examples == 16
    assert batch_shape(RunConfig(), 2, LengthStatistics(4.0, 0.0, 4)).value.max_examples == 512


def test_padded_rows_have_a_segment_a_row():
    padded = replace(RunConfig(), datacollator=DataCollatorConfig(pack_sequences=False))
    shape = batch_shape(padded, 8, LengthStatistics(10.0, 5.0, 20)).value
    assert (shape.rows, shape.max_examples, shape.is_packed) == (8, 8, False)


@pytest.mark.parametrize(
    ("dataset", "collator", "tokenizer", "row", "segment"),
    [(64, None, None, 64, 64), (64, 32, None, 32, 32), (32, 64, None, 64, 32), (64, None, 16, 64, 16)],
)
def test_the_tightest_bound_holds_for_segments(dataset, collator, tokenizer, row, segment):
    config = RunConfig(
        dataset=DatasetConfig(max_seq_length=dataset),
        datacollator=DataCollatorConfig(max_length=collator),
        tokenizer=TokenizerConfig(max_length=tokenizer),
    )
    assert (max_row_length(config), segment_length(config)) == (row, segment)
