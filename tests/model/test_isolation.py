"""Segments do not see each other, to the bit. Planted leaks: `probes/test_faults`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.model import NeoBERT

LENGTHS = (7, 1, 12, 2, 5)


def leaks(model: NeoBERT, run, cu_seqlens: torch.Tensor, victim: int) -> bool:
    """Whether changing one segment's tokens moves any bit of another's output."""
    inputs = run.inputs() | {"cu_seqlens": cu_seqlens, "max_seqlen": 64}
    before = model(**inputs).last_hidden_state
    span = run.spans()[victim]
    changed = run.input_ids.clone()
    changed[span] = (changed[span] + 17) % 90 + 5
    after = model(**{**inputs, "input_ids": changed}).last_hidden_state
    outside = torch.ones(len(changed), dtype=torch.bool)
    outside[span] = False
    return not torch.equal(before[outside], after[outside])


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
