"""The model against a float64 implementation that shares nothing with it: forward, gradients, faults."""

import pytest
import torch

from neobert.model.layers import _rotate_real

HEALTHY = 2e-6
FAULTY = 1e-2
LENGTHS = (7, 1, 12, 2, 5)


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({}, LENGTHS),
        ({"max_position_embeddings": 8}, (40,)),  # rotations go on where positions end
        ({"rope_theta": 100.0}, (20,)),
        ({"rope_theta": 500_000.0}, (20,)),
    ],
)
def test_packed_logits_match(make_model, pack, reference, ratio, changes, lengths):
    model, run = make_model(**changes), pack(lengths)
    wanted = reference(model).logits(run.input_ids, run.position_ids, run.allowed())
    assert ratio(model(**run.inputs()).logits, wanted) < HEALTHY


def test_padded_logits_match(make_model, reference, ratio):
    model = make_model()
    ids, mask = torch.randint(5, 96, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    logits = model(ids, mask).logits
    for row in range(2):
        allowed = mask[row].expand(9, 9)
        wanted = reference(model).logits(ids[row], torch.arange(9), allowed)
        assert ratio(logits[row, mask[row]], wanted[mask[row]]) < HEALTHY


def test_gradients_match_in_every_tensor(make_model, pack, reference, ratio):
    model, run = make_model(), pack(LENGTHS)
    weighting = torch.randn(sum(LENGTHS), 96)
    golden = reference(model)
    (golden.logits(run.input_ids, run.position_ids, run.allowed()) * weighting).sum().backward()
    (model(**run.inputs()).logits * weighting).sum().backward()
    ratios = {name: ratio(p.grad, golden.weights[name].grad) for name, p in model.named_parameters()}
    # The padding row collects no gradient in the model, and no token of the run is padding.
    assert max(ratios.values()) < 10 * HEALTHY, ratios


def test_the_form_for_compilers_computes_the_same(make_model, pack, reference, ratio, monkeypatch):
    model, run = make_model(), pack(LENGTHS)
    wanted = reference(model).logits(run.input_ids, run.position_ids, run.allowed())
    monkeypatch.setattr("neobert.model.layers._rotate_complex", _rotate_real)
    assert ratio(model(**run.inputs()).logits, wanted) < HEALTHY


def test_the_embedding_multiplier_is_applied(make_model, pack, reference, ratio):
    model, run = make_model(embedding_multiplier=22.6), pack((20,))
    wanted = reference(model).logits(run.input_ids, run.position_ids, run.allowed())
    assert ratio(model(**run.inputs()).logits, wanted) < HEALTHY
    inputs = run.inputs()
    embedded = model.model.encoder(inputs.pop("input_ids"))
    assert ratio(model(inputs_embeds=embedded, **inputs).logits, wanted) < HEALTHY


def test_default_positions_restart_in_each_segment(make_model, pack):
    model, run = make_model(), pack(LENGTHS)
    inputs = run.inputs()
    del inputs["position_ids"], inputs["max_seqlen"]
    assert torch.equal(model(**inputs).logits, model(**run.inputs()).logits)


def _qkv_stacked_by_kind(weights):
    for name in [name for name in weights if name.endswith("qkv.weight")]:
        grouped = weights[name].detach().view(4, 3, 8, 32).transpose(0, 1).reshape(96, 32)
        weights[name] = grouped.clone()


def _gate_and_up_swapped(weights):
    for name in [name for name in weights if name.endswith("w12.weight")]:
        weights[name] = weights[name].detach().roll(weights[name].shape[0] // 2, dims=0)


def _rotary_halves(weights):
    order = torch.arange(8).view(4, 2).T.flatten()
    for name in [name for name in weights if name.endswith("qkv.weight")]:
        heads = weights[name].detach().view(4, 3, 8, 32).clone()
        heads[:, :2] = heads[:, :2, order]
        weights[name] = heads.reshape(96, 32)


@pytest.mark.parametrize("plant", [_qkv_stacked_by_kind, _gate_and_up_swapped, _rotary_halves])
def test_a_wrong_layout_is_caught(make_model, pack, reference, ratio, plant):
    model, run = make_model(), pack(LENGTHS)
    golden = reference(model)
    plant(golden.weights)
    wanted = golden.logits(run.input_ids, run.position_ids, run.allowed())
    assert ratio(model(**run.inputs()).logits, wanted) > FAULTY


def test_wrong_positions_are_caught(make_model, pack, reference, ratio):
    model, run = make_model(), pack(LENGTHS)
    wanted = reference(model).logits(run.input_ids, run.position_ids.flip(0), run.allowed())
    assert ratio(model(**run.inputs()).logits, wanted) > FAULTY


def test_rotary_positions_count_distances_only(make_model, pack, ratio):
    """Positions that run on over segments are the same constant more in each: no parity test can see them."""
    model, run = make_model(), pack(LENGTHS)
    running = {**run.inputs(), "position_ids": torch.arange(sum(LENGTHS))}
    assert ratio(model(**running).logits, model(**run.inputs()).logits.double()) < 10 * HEALTHY


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu"}, {"rms_norm": False}, {"rope": False}])
def test_ablations_compute_the_same_packed_and_padded(make_model, pack, ratio, changes):
    model, run = make_model(**changes), pack((9, 4))
    packed = model(**run.inputs()).logits
    for span in run.spans():
        alone = model(run.input_ids[None, span]).logits[0]
        assert ratio(packed[span], alone.double()) < HEALTHY


def test_learned_positions_move_the_output(make_model):
    model = make_model(rope=False)
    ids = torch.randint(5, 96, (1, 6))
    shifted = model(ids, position_ids=torch.arange(6)[None] + 3).logits
    assert not torch.allclose(model(ids).logits, shifted, atol=1e-2)
    assert torch.equal(model(ids).logits, model(ids, position_ids=torch.arange(6)[None]).logits)
