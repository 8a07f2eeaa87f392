"""One optimizer: Muon's update for the matrices of the blocks, AdamW's for the rest."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.schema import OptimizerConfig
from neobert.families.linear import GATE_UP, QKV, QKV_BY_HEAD, WHOLE
from neobert.families.neobert.build import backbone_from_model
from neobert.optim import build_optimizer, muon
from neobert.optim.fused_rows import split_rows
from neobert.optim.muon import MuonWithAdamW
from neobert.optim.muon_groups import group_matrices_by_layout
from tests.optim.conftest import models

MUON = OptimizerConfig(name="muon", lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)


@pytest.fixture
def in_bf16(monkeypatch):
    """On a CPU the iteration is in fp32; torch's Muon is in bf16 on each device."""
    monkeypatch.setattr(muon, "iteration_dtype", lambda _: torch.bfloat16)


def set_gradients(model, seed):
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def advance(model, optimizer, seeds):
    for seed in seeds:
        set_gradients(model, seed)
        optimizer.step()


def plain(weight, **changes):
    """A single matrix under this project's Muon."""
    group = {"params": [weight], "rule": "muon", "lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "original"}
    return MuonWithAdamW([group | changes])


@pytest.mark.parametrize("shape", [(16, 16), (24, 40), (40, 24)])
@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.usefixtures("in_bf16")
def test_a_matrix_is_updated_as_torch_muon_does(shape, adjust_lr_fn, nesterov):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(ours.detach().clone())
    changes = {"adjust_lr_fn": adjust_lr_fn, "nesterov": nesterov}
    pair = plain(ours, **changes), Muon([theirs], lr=0.02, weight_decay=0.1, **changes)
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_cpu_rounds_less_than_torch_muon_does():
    draw = torch.Generator().manual_seed(0)
    ours, gradient = torch.nn.Parameter(torch.zeros(24, 40)), torch.randn(24, 40, generator=draw)
    theirs = torch.nn.Parameter(torch.zeros(24, 40))
    ours.grad, theirs.grad = gradient, gradient.clone()
    plain(ours).step()
    Muon([theirs], lr=0.02, weight_decay=0.1).step()
    # bf16 has 8 bits; five iterations add up their rounding.
    assert 2**-12 < (ours - theirs).norm() / theirs.norm() < 2**-5


def parts_of(model, name, split):
    """The matrices that a stacked weight is made of, as their own parameters."""
    block = model.model.transformer_encoder[1]
    rows = QKV_BY_HEAD if split == "heads" else QKV
    weight, layout = {"qkv": (block.qkv.weight, rows), "w12": (block.ffn.w12.weight, GATE_UP)}[name]
    parts = split_rows(weight.detach(), layout, block.num_heads)
    return weight, layout, [torch.nn.Parameter(part.clone()) for part in parts]


@pytest.mark.parametrize(("name", "split"), [("qkv", "projections"), ("qkv", "heads"), ("w12", "heads")])
@pytest.mark.usefixtures("in_bf16")
def test_stacked_matrices_are_updated_as_matrices_of_their_own(name, split, make_model):
    model = make_model()
    heads = model.config.num_attention_heads
    weight, layout, parts = parts_of(model, name, split)
    rates = {"lr": MUON.lr, "weight_decay": MUON.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
    apart, ours = (
        Muon(parts, **rates),
        build_optimizer(replace(MUON, muon_split=split), model, backbone_from_model(model).layouts),
    )
    for seed in range(3):
        set_gradients(model, seed)
        for part, gradient in zip(parts, split_rows(weight.grad, layout, heads), strict=True):
            part.grad = gradient.contiguous()
        apart.step()
        ours.step()
    torch.testing.assert_close(split_rows(weight, layout, heads), torch.stack(parts), rtol=1e-6, atol=1e-6)


def test_a_wrong_layout_of_heads_gives_another_update(make_model):
    """Negative control: [Q; K; V] for all heads at once, as one head would have it."""
    right, wrong = make_model(), make_model()
    optimizers = (
        build_optimizer(MUON, right, backbone_from_model(right).layouts),
        build_optimizer(MUON, wrong, backbone_from_model(wrong).layouts),
    )
    for group in optimizers[1].param_groups:
        group["num_heads"] = 1
    for model, optimizer in zip((right, wrong), optimizers, strict=True):
        advance(model, optimizer, [0])
    difference = {
        name: (a - b).abs().max().item()
        for (name, a), (_, b) in zip(right.named_parameters(), wrong.named_parameters(), strict=True)
    }
    assert all((value > 1e-3) == name.endswith("qkv.weight") for name, value in difference.items())


@pytest.mark.parametrize("adjust_lr_fn", ["match_rms_adamw", "original"])
def test_an_update_of_heads_has_the_size_of_one_of_projections(adjust_lr_fn, make_model):
    """Wide matrices [H, D] get orthogonal rows: as large an update per weight as a square [D, D]."""
    sizes = {}
    for split in ("projections", "heads"):
        model = make_model()
        before = model.model.transformer_encoder[0].qkv.weight.detach().clone()
        config = replace(MUON, muon_split=split, muon_adjust_lr_fn=adjust_lr_fn, weight_decay=0.0)
        advance(model, build_optimizer(config, model, backbone_from_model(model).layouts), [0])
        change = model.model.transformer_encoder[0].qkv.weight.detach() - before
        sizes[split] = float(change.square().mean().sqrt())
    assert sizes["heads"] == pytest.approx(sizes["projections"], rel=0.15)


def test_the_rest_is_updated_as_torch_adamw_does(make_model):
    model = make_model()
    alone = copy.deepcopy(model)
    taken = {
        id(each)
        for found in group_matrices_by_layout(alone, backbone_from_model(alone).layouts()).values()
        for each in found
    }
    rest = {name: each for name, each in alone.named_parameters() if id(each) not in taken}
    decayed = [each for name, each in rest.items() if name == "decoder.weight"]
    spared = [each for name, each in rest.items() if name != "decoder.weight"]
    adamw = AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}],
        lr=MUON.lr,
        betas=MUON.betas,
        fused=True,
    )
    advance(model, build_optimizer(MUON, model, backbone_from_model(model).layouts), range(3))
    advance(alone, adamw, range(3))
    ours = dict(model.named_parameters())
    assert len(rest) == 8
    assert all(torch.equal(ours[name], each) for name, each in rest.items())


@settings(max_examples=20)
@given(model=models, frozen=st.booleans())
def test_each_parameter_is_in_exactly_one_group(model, frozen):
    model.model.transformer_encoder[0].wo.weight.requires_grad = not frozen
    groups = build_optimizer(MUON, model, backbone_from_model(model).layouts).param_groups
    rules = [(id(each), group["rule"]) for group in groups for each in group["params"]]
    trained = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
    assert sorted(dict(rules)) == sorted(trained)
    assert len(rules) == len(trained)
    for parameter, rule in rules:
        is_hidden = "transformer_encoder" in trained[parameter] and "norm" not in trained[parameter]
        assert (rule == "muon") == is_hidden, trained[parameter]


def test_layouts_go_to_the_weights_that_have_them(make_model):
    for model, counts in (
        (make_model(), {QKV: 2, GATE_UP: 2, WHOLE: 4}),
        (make_model(hidden_act="gelu"), {QKV: 2, WHOLE: 6}),
    ):
        found = group_matrices_by_layout(model, backbone_from_model(model).layouts())
        assert {layout.name: len(each) for layout, each in found.items()} == counts


def test_one_schedule_drives_both_rates(make_model):
    model, config = make_model(), OptimizerConfig(name="muon", lr=1e-3, muon_lr=2e-2)
    optimizer = build_optimizer(config, model, backbone_from_model(model).layouts)
    schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    assert schedule.get_last_lr()[0] == 1e-3
    assert {group["lr"] for group in optimizer.param_groups if group["rule"] == "muon"} == {2e-2}
    optimizer.step()
    schedule.step()
    assert {group["lr"] for group in optimizer.param_groups} == {5e-4, 1e-2}


def test_matrices_keep_one_moment_and_the_rest_two(make_model):
    model = make_model()
    optimizer = build_optimizer(MUON, model, backbone_from_model(model).layouts)
    advance(model, optimizer, [0])
    hidden = {
        id(each)
        for found in group_matrices_by_layout(model, backbone_from_model(model).layouts()).values()
        for each in found
    }
    for parameter, state in optimizer.state.items():
        expected = {"momentum_buffer"} if id(parameter) in hidden else {"step", "exp_avg", "exp_avg_sq"}
        assert set(state) == expected


def test_state_goes_round_to_the_last_bit(make_model, tmp_path):
    model = make_model()
    optimizer = build_optimizer(MUON, model, backbone_from_model(model).layouts)
    advance(model, optimizer, range(3))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    other = make_model()
    resumed = build_optimizer(MUON, other, backbone_from_model(other).layouts)
    saved = torch.load(tmp_path / "state.pt")
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    advance(model, optimizer, range(3, 6))
    advance(other, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), 1.0])
def test_a_step_that_was_found_bad_changes_nothing(make_model, spoil):
    model = make_model()
    optimizer = build_optimizer(MUON, model, backbone_from_model(model).layouts)
    advance(model, optimizer, range(2))
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    set_gradients(model, 2)
    for parameter in model.parameters():
        parameter.grad.mul_(spoil)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    for index, kept in state["state"].items():
        for name, value in kept.items():
            assert torch.equal(optimizer.state_dict()["state"][index][name], value), name


def test_a_step_that_was_found_good_is_taken(make_model):
    watched, plain_one = make_model(), make_model()
    optimizer = build_optimizer(MUON, watched, backbone_from_model(watched).layouts)
    optimizer.found_inf = torch.zeros(())
    advance(watched, optimizer, range(3))
    advance(plain_one, build_optimizer(MUON, plain_one, backbone_from_model(plain_one).layouts), range(3))
    for ours, theirs in zip(watched.parameters(), plain_one.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="2-dimensional"):
        plain(torch.nn.Parameter(torch.zeros(4)))


def test_a_closure_is_called_with_gradients_on():
    weight = torch.nn.Parameter(torch.ones(3, 3))
    loss = plain(weight).step(lambda: (weight.sum().backward(), 7)[1])
    assert loss == 7
    assert not torch.equal(weight.detach(), torch.ones(3, 3))


@pytest.mark.parametrize("name", ["muon", "muonclip"])
def test_a_tiny_model_learns(name, make_model, make_packed):
    model, inputs = make_model(), make_packed([9, 20, 3], 32)
    optimizer = build_optimizer(
        OptimizerConfig(name=name, lr=5e-3), model, backbone_from_model(model).layouts
    )
    del inputs["attention_mask"]
    losses = []
    for _ in range(15):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
