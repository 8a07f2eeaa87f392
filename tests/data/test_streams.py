"""The streams of microbatches, over every kind of text: the same order whoever reads it, from wherever."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert.config.schema import RunConfig
from neobert.data.batches import windows
from neobert.data.batches.streams import Cursor, EvalStream, Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.token_store import TokenStore
from neobert.errors import ProjectError
from tests.data.conftest import KINDS, MANY, Text, read, same


@pytest.fixture(params=KINDS)
def text(request: pytest.FixtureRequest, texts: dict[str, Text], monkeypatch: pytest.MonkeyPatch) -> Text:
    if request.param == "prepared in windows":
        whole = windows.PreparedWindows.__init__
        monkeypatch.setattr(
            windows.PreparedWindows,
            "__init__",
            lambda self, store, shape, seed: whole(self, store, shape, seed, 60),
        )
    return texts[request.param]


def originals(batch: Microbatch) -> Iterator[tuple[int, list[int]]]:
    """Undo the masks: (sample id, token ids) of each segment."""
    ids = torch.where(batch.labels == IGNORED, batch.input_ids, batch.labels)
    for place, sample in enumerate(batch.sample_ids.tolist()):
        if batch.cu_seqlens is None:
            yield sample, ids[place][batch.attention_mask[place]].tolist()
        else:
            start, stop = batch.cu_seqlens[place : place + 2].tolist()
            yield sample, ids[start:stop].tolist()


def epochs_of(batches: list[Microbatch]) -> dict[int, list[Microbatch]]:
    found: dict[int, list[Microbatch]] = {}
    for batch in batches:
        found.setdefault(batch.cursor.epoch, []).append(batch)
    return found


def test_a_resume_from_any_cursor_goes_on_bit_for_bit(text):
    batches = read(text, MANY)
    assert batches[-1].cursor.epoch >= 1, "the walk crosses an epoch"
    for place in range(0, MANY - 1, 3):
        cursor = Cursor.from_dict(json.loads(json.dumps(batches[place].cursor.to_dict())))
        for resumed, original in zip(read(text, 2, cursor=cursor), batches[place + 1 :], strict=False):
            assert same(resumed, original), place


def test_every_segment_comes_once_an_epoch(text):
    _, data = text
    epochs = epochs_of(read(text, MANY))
    for number in (0, 1):
        found = dict(segment for batch in epochs[number] for segment in originals(batch))
        assert sum(batch.num_segments for batch in epochs[number]) == len(found)
        assert sorted(found) == list(range(len(found)))
        if isinstance(data.train, TokenStore):
            parts = np.split(np.asarray(data.train.tokens), data.train.offsets[1:-1])
            assert [found[place] for place in range(len(found))] == [part.tolist() for part in parts]


def test_all_kinds_of_text_hold_the_same_segments(texts):
    def segments(kind: str) -> list[list[int]]:
        epoch = epochs_of(read(texts[kind], MANY))[0]
        return sorted(ids for batch in epoch for _, ids in originals(batch))

    expected = segments("prepared")
    assert len(expected) > 100
    assert all(segments(kind) == expected for kind in KINDS)


def test_the_order_does_not_depend_on_the_world_size(text):
    alone = read(text, 24)
    for world_size in (2, 3):
        ranks = [read(text, 24 // world_size, rank, world_size) for rank in range(world_size)]
        dealt = [batch for group in zip(*ranks, strict=True) for batch in group]
        assert len(dealt) == 24
        assert all(same(mine, theirs, cursor=False) for mine, theirs in zip(alone, dealt, strict=True))
        for group in zip(*ranks, strict=True):
            assert len({json.dumps(batch.cursor.to_dict()) for batch in group}) == 1


def test_another_world_size_goes_on_with_the_same_order(text):
    alone = read(text, 12)
    two = [read(text, 3, rank, 2) for rank in range(2)]
    resumed = read(text, 6, cursor=two[0][-1].cursor)
    assert all(same(mine, theirs) for mine, theirs in zip(resumed, alone[6:], strict=True))


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 1}])
def test_threads_never_change_the_samples(text, options):
    assert all(map(same, read(text, 30), read(text, 30, **options)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "padded rows"])
def test_packed_microbatches_have_static_shapes_and_isolated_padding(texts, kind):
    batches = read(texts[kind], MANY)
    assert len({(batch.input_ids.shape, batch.cu_seqlens.shape, batch.max_seqlen) for batch in batches}) == 1
    assert batches[0].input_ids.shape == (4 * 32,)
    for batch in batches:
        ends = batch.cu_seqlens
        assert ends.dtype == torch.int32
        assert (ends[0], ends[-1]) == (0, 128)
        lengths = ends.diff()
        assert (lengths >= 0).all()
        assert lengths.max() <= batch.max_seqlen == 32
        assert (lengths[: batch.num_segments] > 0).all()
        assert ends[batch.num_segments] == batch.num_tokens
        padding = batch.input_ids[batch.num_tokens :]
        assert (padding == 0).all()
        assert (batch.labels[batch.num_tokens :] == IGNORED).all()
        expected = torch.cat([torch.arange(int(n)) for n in lengths[lengths > 0]])
        assert torch.equal(batch.position_ids, expected)
        assert batch.num_targets == int((batch.labels != IGNORED).sum())


def test_padded_rows_are_as_wide_as_their_longest_rounded_up(texts):
    batches = read(texts["padded rows"], MANY)
    for batch in batches:
        lengths = batch.attention_mask.sum(1)
        width = min(-(-int(lengths.max()) // 4) * 4, 32)
        assert batch.input_ids.shape == batch.attention_mask.shape == (batch.num_segments, width)
        assert batch.attention_mask.dtype == torch.bool
        assert batch.num_tokens == int(lengths.sum())
        assert (batch.input_ids[~batch.attention_mask] == 0).all()
        assert (batch.labels[~batch.attention_mask] == IGNORED).all()
        assert (batch.attention_mask[:, 0]).all()
    assert {batch.num_segments for batch in batches} >= {4}


def test_masks_do_not_depend_on_the_layout(texts):
    def masked(kind: str) -> dict[int, list[int]]:
        found = {}
        for batch in epochs_of(read(texts[kind], MANY))[0]:
            for place, sample in enumerate(batch.sample_ids.tolist()):
                if batch.cu_seqlens is None:
                    found[sample] = batch.input_ids[place][batch.attention_mask[place]].tolist()
                else:
                    found[sample] = batch.input_ids[slice(*batch.cu_seqlens[place : place + 2])].tolist()
        return found

    assert masked("padded rows") == masked("prepared")


def test_seeds_and_epochs_shuffle_and_mask_anew(texts):
    config, data = texts["prepared"]
    first = epochs_of(read((config, data), MANY))
    other = epochs_of(read((replace(config, seed=1), data), MANY))
    orders = [
        [sample for batch in epoch for sample in batch.sample_ids.tolist()]
        for epoch in (first[0], first[1], other[0])
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert len({tuple(order) for order in orders}) == 3


def test_a_stream_in_order_is_in_order(texts):
    epoch = epochs_of(read(texts["stream in order"], MANY))[0]
    samples = [sample for batch in epoch for sample in batch.sample_ids.tolist()]
    assert samples == list(range(len(samples)))


def test_a_microbatch_without_targets_is_legal(texts):
    config, data = texts["prepared"]
    rare = replace(config, datacollator=replace(config.datacollator, mlm_probability=1e-6))
    batch = read((rare, data), 1)[0]
    assert batch.num_targets == 0
    assert (batch.labels == IGNORED).all()


def test_evaluation_is_the_same_every_time_for_every_seed_and_world_size(text):
    config, data = text

    def evaluate(config: RunConfig, rank: int = 0, world_size: int = 1) -> list[Microbatch]:
        return list(EvalStream(data, config, data.tokenizer, rank, world_size))

    stream = EvalStream(data, config, data.tokenizer)
    alone = list(stream)
    assert all(map(same, alone, stream))
    assert all(map(same, alone, evaluate(replace(config, seed=9))))
    samples = sorted(sample for batch in alone for sample in batch.sample_ids.tolist())
    assert samples == list(range(len(data.eval)))
    for world_size in (2, 3):
        ranks = [evaluate(config, rank, world_size) for rank in range(world_size)]
        assert len({len(batches) for batches in ranks}) == 1, "ranks take the same number of steps"
        dealt = [batch for group in zip(*ranks, strict=True) for batch in group]
        assert all(same(a, b, cursor=False) for a, b in zip(alone, dealt, strict=False))
        for padding in dealt[len(alone) :]:
            assert (padding.num_tokens, padding.num_targets, padding.num_segments) == (0, 0, 0)
            assert padding.cu_seqlens is None or torch.equal(
                padding.cu_seqlens.diff()[:2], torch.tensor([32, 32])
            )
            assert padding.attention_mask is None or padding.attention_mask.all()


def test_evaluations_mask_their_own_share_and_training_does_not_depend_on_it(texts):
    config, data = texts["prepared"]

    def masking(**rates: float) -> RunConfig:
        return replace(config, datacollator=replace(config.datacollator, **rates))

    def share(batches: Sequence[Microbatch]) -> float:
        return sum(each.num_targets for each in batches) / sum(each.num_tokens for each in batches)

    own = masking(mlm_probability=0.7, mlm_probability_eval=0.2)
    plain, alike = (masking(mlm_probability=rate) for rate in (0.7, 0.2))
    assert all(map(same, read((own, data), 8), read((plain, data), 8)))
    evaluated, expected = (list(EvalStream(data, each, data.tokenizer)) for each in (own, alike))
    assert all(map(same, evaluated, expected))
    assert share(evaluated) < 0.4 < share(read((own, data), 8))


def test_evaluation_can_be_cut_short(texts):
    config, data = texts["prepared"]
    short = replace(config, trainer=replace(config.trainer, eval_max_batches=2))
    whole, cut = (list(EvalStream(data, each, data.tokenizer)) for each in (config, short))
    assert len(cut) == 2 < len(whole)
    assert all(map(same, cut, whole))


def test_evaluation_without_text_is_an_error(texts):
    config, data = texts["prepared"]
    with pytest.raises(ProjectError, match="no evaluation text"):
        EvalStream(replace(data, eval=None), config, data.tokenizer)


def test_a_token_outside_the_vocabulary_is_refused(texts):
    config, data = texts["prepared"]
    tokens = np.asarray(data.train.tokens).copy()
    tokens[-2] = 128
    broken = replace(data, train=replace(data.train, tokens=tokens))
    with pytest.raises(ProjectError, match=r"token id 128.*128 \[DAT002\]"):
        read((config, broken), MANY, num_workers=1)


@given(st.integers(0, 3), st.integers(0, 5), st.integers(0, 100), st.none() | st.just({"state": {"a": [1]}}))
def test_cursors_survive_json(epoch, window, index, stream):
    cursor = Cursor(epoch, window, index, stream)
    assert Cursor.from_dict(json.loads(json.dumps(cursor.to_dict()))) == cursor


def test_tensors_move_together(shared):
    make, data = shared
    config = make(dataset__eval_samples=30)
    batch = read((config, data), 1)[0]
    moved = batch.to("meta")
    assert {moved.input_ids.device.type, moved.cu_seqlens.device.type, moved.sample_ids.device.type} == {
        "meta"
    }
    assert (moved.num_tokens, moved.cursor, moved.attention_mask) == (batch.num_tokens, batch.cursor, None)
