"""Segments do not see each other, to the bit; and every way to break that is caught in the same file."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.model import NeoBERT

LENGTHS = (7, 1, 12, 2, 5)


def leaks(model: NeoBERT, run, cu_seqlens=None, victim: int = 2) -> bool:
    """Whether changing one segment's tokens moves any bit of another's output."""
    inputs = run.inputs() | ({} if cu_seqlens is None else {"cu_seqlens": cu_seqlens, "max_seqlen": 64})
    before = model(**inputs).last_hidden_state
    span = run.spans()[victim]
    changed = run.input_ids.clone()
    changed[span] = (changed[span] + 17) % 90 + 5
    after = model(**{**inputs, "input_ids": changed}).last_hidden_state
    outside = torch.ones(len(changed), dtype=torch.bool)
    outside[span] = False
    return not torch.equal(before[outside], after[outside])


def cross_gradient(model: NeoBERT, run, cu_seqlens=None, victim: int = 2) -> float:
    """Largest gradient of the other segments' outputs to one segment's embeddings."""
    inputs = run.inputs() | ({} if cu_seqlens is None else {"cu_seqlens": cu_seqlens, "max_seqlen": 64})
    embedded = model.encoder(inputs.pop("input_ids")).detach().requires_grad_()
    hidden = model(inputs_embeds=embedded, **inputs).last_hidden_state
    span = run.spans()[victim]
    (hidden * torch.randn_like(hidden)).sum(-1)[_outside(run, span)].sum().backward()
    return float(embedded.grad[span].abs().max())


def _outside(run, span: slice) -> torch.Tensor:
    outside = torch.ones(len(run.input_ids), dtype=torch.bool)
    outside[span] = False
    return outside


@pytest.mark.parametrize("victim", range(len(LENGTHS)))
def test_perturbing_a_segment_moves_no_bit_elsewhere(make_model, pack, victim):
    assert not leaks(make_model().model, pack(LENGTHS), victim=victim)


@pytest.mark.parametrize("victim", range(len(LENGTHS)))
def test_cross_segment_gradients_are_exactly_zero(make_model, pack, victim):
    assert cross_gradient(make_model().model, pack(LENGTHS), victim=victim) == 0.0


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param([0, 27], id="one segment for all"),
        pytest.param([0, 7, 8, 22, 27], id="two segments merged"),
        pytest.param([0, 7, 8, 21, 22, 27], id="one boundary off by one"),
    ],
)
def test_broken_boundaries_are_caught_both_ways(make_model, pack, broken):
    model, run = make_model().model, pack(LENGTHS)
    broken = torch.tensor(broken, dtype=torch.int32)
    assert leaks(model, run, broken)
    assert cross_gradient(model, run, broken) > 0


def test_one_leaked_key_in_one_block_and_head_is_caught(make_model, pack, monkeypatch):
    model, run = make_model().model, pack(LENGTHS)
    block = model.transformer_encoder[1]
    honest = block._attention

    def leaking(x, rotation, attend):
        def attend_and_leak(q, k, v):
            context = attend(q, k, v).clone()
            context[0, 0] = context[0, 0] + 1e-3 * v[run.spans()[2].start, 0]
            return context

        return honest(x, rotation, attend_and_leak)

    assert not leaks(model, run)
    monkeypatch.setattr(block, "_attention", leaking)
    assert leaks(model, run)
    assert cross_gradient(model, run) > 0


def test_every_token_of_a_segment_sees_every_other(make_model, pack):
    model, run = make_model().model, pack(LENGTHS)
    span = run.spans()[2]
    for source, target in [(span.stop - 1, span.start), (span.start, span.stop - 1)]:
        changed = run.input_ids.clone()
        changed[source] = (changed[source] + 17) % 90 + 5
        before = model(**run.inputs()).last_hidden_state[target]
        after = model(**{**run.inputs(), "input_ids": changed}).last_hidden_state[target]
        assert (before - after).abs().max() > 1e-3


def test_the_order_of_segments_does_not_matter(make_model, pack):
    model, run = make_model().model, pack(LENGTHS)
    order = [3, 0, 4, 2, 1]
    moved = pack([LENGTHS[i] for i in order])
    ids = torch.cat([run.input_ids[run.spans()[i]] for i in order])
    hidden = model(**run.inputs()).last_hidden_state
    reordered = model(**{**moved.inputs(), "input_ids": ids}).last_hidden_state
    for place, i in enumerate(order):
        torch.testing.assert_close(reordered[moved.spans()[place]], hidden[run.spans()[i]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("boundaries", [[0, 7, 8, 20, 22, 27, 27, 27], [0, 0, 7, 7, 8, 20, 22, 27]])
def test_empty_slots_are_inert(make_model, pack, boundaries):
    model, run = make_model().model, pack(LENGTHS)
    padded = torch.tensor(boundaries, dtype=torch.int32)
    wanted = model(**run.inputs()).last_hidden_state
    assert torch.equal(model(**{**run.inputs(), "cu_seqlens": padded}).last_hidden_state, wanted)


def test_pads_are_inert(make_model):
    model = make_model().model
    ids, mask = torch.randint(5, 96, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    other = ids.clone()
    other[1, 6:] = 0
    assert torch.equal(model(ids, mask).last_hidden_state[mask], model(other, mask).last_hidden_state[mask])
    assert not torch.equal(model(ids).last_hidden_state[mask], model(other).last_hidden_state[mask])


def test_rows_of_a_batch_do_not_see_each_other(make_model):
    model = make_model().model
    ids = torch.randint(5, 96, (2, 9))
    other = ids.clone()
    other[1] = ids[1].flip(0)
    assert torch.equal(model(ids).last_hidden_state[0], model(other).last_hidden_state[0])


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=8),
    empty_slots=st.integers(0, 3),
    data=st.data(),
)
def test_isolation_and_parity_for_any_lengths(make_model, pack, lengths, empty_slots, data):
    model, run = make_model(num_hidden_layers=2).model, pack(lengths)
    tail = torch.full((empty_slots,), sum(lengths), dtype=torch.int32)
    boundaries = torch.cat([run.cu_seqlens, tail])
    victim = data.draw(st.integers(0, len(lengths) - 1))
    with torch.no_grad():
        assert not leaks(model, run, boundaries, victim)
        packed = model(**{**run.inputs(), "cu_seqlens": boundaries}).last_hidden_state
        alone = model(run.input_ids[None, run.spans()[victim]]).last_hidden_state[0]
    torch.testing.assert_close(packed[run.spans()[victim]], alone, rtol=0, atol=2e-5)
