"""Every parameter is in one group, and only matrices that are no embeddings decay."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import Adam, AdamW

from neobert.config.schema import OptimizerConfig
from neobert.optim import build_optimizer, decay_groups
from tests.optim.conftest import clipped_updates, models


@settings(max_examples=20)
@given(model=models, frozen=st.booleans())
def test_each_parameter_is_in_exactly_one_group(model, frozen):
    model.model.layer_norm.weight.requires_grad = not frozen
    groups = decay_groups(model, 0.1)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(grouped) == sorted(set(trained))
    decays = {id(each): group["weight_decay"] for group in groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        spared = "norm" in name or name.endswith("bias") or "encoder.weight" in name or "embedding" in name
        if parameter.requires_grad:
            assert decays[id(parameter)] == (0.0 if spared else 0.1), name


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_decay_shrinks_matrices_and_nothing_else(name):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.1, weight_decay=0.5), model)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for each, parameter in model.named_parameters():
        factor = 0.95 if each == "2.weight" else 1.0
        torch.testing.assert_close(parameter.detach(), before[each] * factor)


def test_the_update_is_adamw():
    torch.manual_seed(0)
    config = OptimizerConfig(lr=1e-2, betas=(0.9, 0.95), eps=1e-7, weight_decay=0.1)
    model = torch.nn.Linear(300, 300, bias=False).to(torch.float64)
    weight = model.weight.detach().clone()
    first = second = torch.zeros_like(weight)
    optimizer = build_optimizer(config, model)
    for step in range(1, 4):
        gradient = torch.randn_like(weight)
        model.weight.grad = gradient
        optimizer.step()
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        corrected = (second / (1 - 0.95**step)).sqrt() + 1e-7
        weight = weight * (1 - 1e-2 * 0.1) - 1e-2 * (first / (1 - 0.9**step)) / corrected
    torch.testing.assert_close(model.weight.detach(), weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [3, 1023, 70001])
def test_the_fused_update_is_bit_stable(size):
    def updated() -> torch.Tensor:
        torch.manual_seed(1)
        model = torch.nn.Linear(size, 1)
        optimizer = build_optimizer(OptimizerConfig(), model)
        for _ in range(3):
            model.weight.grad, model.bias.grad = torch.randn(1, size), torch.randn(1)
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(updated(), updated())


@pytest.mark.parametrize(("name", "decay"), [("adamw", 0.0), ("adam", 0.0), ("adam", 0.1)])
def test_adam_is_torch_s_to_the_last_bit_and_adamw_without_decay_is_adam(name, decay):
    """Adam adds its decay to the gradient, of matrices only."""
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    theirs.load_state_dict(ours.state_dict())
    config = OptimizerConfig(name=name, lr=1e-2, weight_decay=decay)
    groups = [{"params": [theirs.weight], "weight_decay": decay}, {"params": [theirs.bias]}]
    pairs = [(ours, build_optimizer(config, ours)), (theirs, Adam(groups, lr=1e-2, fused=True))]
    assert type(pairs[0][1]) is (Adam if name == "adam" else AdamW)
    for _ in range(3):
        gradients = [torch.randn_like(each) for each in ours.parameters()]
        for model, optimizer in pairs:
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    assert all(torch.equal(*both) for both in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("limit", [0.5, 1e4])
@pytest.mark.parametrize("name", ["adam", "adamw", "lion"])
def test_updates_are_those_of_clipped_gradients(name, limit):
    for one, other in clipped_updates(name, limit):
        assert torch.equal(one, other)
