"""Padded rows: what an attention_mask may be, what attention probabilities are, what is refused."""

import pytest
import torch

S = 9


@pytest.fixture
def rows():
    ids, mask = torch.randint(5, 96, (2, S)), torch.ones(2, S, dtype=torch.bool)
    mask[1, 6:] = False
    return ids, mask


def additive(mask: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)


SPELLINGS = {
    "int64": lambda mask: mask.long(),
    "int32": lambda mask: mask.int(),
    "additive": additive,
    "additive with the lowest float": lambda m: additive(m).clamp(min=torch.finfo(torch.float32).min),
    "4-D bool, one query": lambda mask: mask[:, None, None, :],
    "4-D bool, square": lambda mask: mask[:, None, None, :].expand(2, 1, S, S),
    "4-D bool, every head": lambda mask: mask[:, None, None, :].expand(2, 4, S, S),
    "4-D int": lambda mask: mask[:, None, None, :].long(),
    "4-D additive": lambda mask: additive(mask)[:, None, None, :],
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("output_attentions", [False, True])
def test_all_spellings_of_a_mask_mean_the_same(make_model, rows, spell, output_attentions):
    model, (ids, mask) = make_model(), rows
    wanted = model(ids, mask).logits[mask]
    found = model(ids, spell(mask), output_attentions=output_attentions).logits[mask]
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
    assert not torch.allclose(model(ids).logits[mask], wanted, atol=1e-3)


def test_a_mask_for_each_query_is_honoured(make_model, pack, reference, ratio):
    model, run = make_model(), pack((5, 4))
    wanted = reference(model).logits(run.input_ids, run.position_ids, run.allowed())
    block = run.allowed()[None, None]
    found = model(run.input_ids[None], block, run.position_ids[None]).logits[0]
    assert ratio(found, wanted) < 2e-6


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("output_attentions", [False, True])
def test_a_row_of_padding_stays_finite_forward_and_backward(make_model, spell, output_attentions):
    model = make_model()
    ids, mask = torch.randint(5, 96, (2, S)), torch.ones(2, S, dtype=torch.bool)
    mask[1] = False
    logits = model(ids, spell(mask), output_attentions=output_attentions).logits
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_attentions_are_softmax_probabilities(make_model, rows):
    model, (ids, mask) = make_model(), rows
    attentions = model(ids, mask, output_attentions=True).attentions
    assert len(attentions) == 3
    for weights in attentions:
        assert weights.shape == (2, 4, S, S)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, S))
        assert weights[1, :, :, 6:].eq(0).all()
        assert weights[0].gt(0).all()


def test_attentions_are_those_of_the_definition(make_model, rows):
    model, (ids, _) = make_model(num_hidden_layers=1), rows
    block = model.model.transformer_encoder[0]
    q, k, _ = block.qkv(block.attention_norm(model.model.encoder(ids))).view(2, S, 4, 24).chunk(3, -1)
    turn = torch.arange(S)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    turn = torch.polar(torch.ones_like(turn), turn)[:, None]
    q, k = (
        torch.view_as_real(torch.view_as_complex(x.reshape(2, S, 4, 4, 2)) * turn).flatten(-2) for x in (q, k)
    )
    wanted = (torch.einsum("bqnh,bknh->bnqk", q, k) / 8**0.5).softmax(-1)
    found = model(ids, output_attentions=True).attentions[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_hidden_states_run_from_the_embedding_to_the_normed_last(make_model, rows):
    model, (ids, mask) = make_model().model, rows
    out = model(ids, mask, output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert torch.equal(out.hidden_states[0], model.encoder(ids))
    assert out.hidden_states[-1] is out.last_hidden_state
    assert model(ids, mask).hidden_states is None


def test_configuration_may_ask_for_states_and_a_tuple(make_model, rows):
    model, (ids, mask) = make_model(), rows
    model.config.output_hidden_states = True
    assert len(model(ids, mask).hidden_states) == 4
    logits, states = model(ids, mask, return_dict=False)
    assert logits.shape == (2, S, 96)
    assert len(states) == 4
    model.config.return_dict = model.model.config.return_dict = False
    assert torch.equal(model(ids, mask)[0], logits)


def test_embeddings_may_take_the_place_of_ids(make_model, rows):
    model, (ids, mask) = make_model().model, rows
    found = model(inputs_embeds=model.encoder(ids), attention_mask=mask).last_hidden_state
    assert torch.equal(found, model(ids, mask).last_hidden_state)


def test_a_packed_row_is_taken_as_a_run(make_model, pack):
    model, run = make_model(), pack((5, 4))
    row = {name: x[None] if name in ("input_ids", "position_ids") else x for name, x in run.inputs().items()}
    out = model(**row, output_hidden_states=True)
    assert out.logits.shape == (1, 9, 96)
    assert torch.equal(out.logits[0], model(**run.inputs()).logits)
    assert out.hidden_states[1].shape == (1, 9, 32)


def test_autocast_takes_an_additive_mask(make_model, rows):
    model, (ids, mask) = make_model(), rows
    with torch.autocast("cpu", torch.bfloat16):
        found = model(ids, additive(mask)).logits[mask]
        wanted = model(ids, mask).logits[mask]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)


def test_masks_that_would_be_misread_are_refused(make_model, rows):
    model, (ids, mask) = make_model(), rows
    with pytest.raises(ValueError, match="added to the scores"):
        model(ids, mask.float())
    with pytest.raises(ValueError, match="3 dimensions"):
        model(ids, mask[:, None])


def test_wrong_packed_input_is_refused(make_model, pack):
    model, run = make_model(), pack((5, 4))
    inputs = run.inputs()
    with pytest.raises(ValueError, match="attention_mask is not supported"):
        model(**inputs, attention_mask=torch.ones(9, dtype=torch.bool))
    with pytest.raises(ValueError, match="padded rows"):
        model(**inputs, output_attentions=True)
    with pytest.raises(ValueError, match="needs cu_seqlens"):
        model(run.input_ids)
    with pytest.raises(ValueError, match="got 3 rows"):
        model(torch.ones(3, 3, dtype=torch.long), cu_seqlens=run.cu_seqlens)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model(cu_seqlens=run.cu_seqlens)


@pytest.mark.parametrize("boundaries", [[0, 5], [1, 9], [0, 6, 5, 9], [0, 5, 10]])
def test_boundaries_that_do_not_cover_the_run_are_refused(make_model, pack, boundaries):
    inputs = pack((5, 4)).inputs() | {"cu_seqlens": torch.tensor(boundaries, dtype=torch.int32)}
    with pytest.raises(ValueError, match="increase from 0 to the 9 tokens"):
        make_model()(**inputs)


def test_a_segment_over_max_seqlen_is_refused(make_model, pack):
    with pytest.raises(ValueError, match="longer than max_seqlen"):
        make_model()(**(pack((5, 4)).inputs() | {"max_seqlen": 4}))
