"""Optimizer and random state go through plain tensors and come back as they were."""

import random

import numpy as np
import pytest
import torch

from neobert.config.schema import OptimizerConfig
from neobert.errors import ProjectError
from neobert.optim import build_optimizer
from neobert.training.checkpoint.tensors import (
    optimizer_targets,
    optimizer_tensors,
    random_state,
    restore_random_state,
    set_optimizer_state,
)


def draws():
    return (
        torch.randn(5).tolist(),
        np.random.standard_normal(3).tolist(),
        np.random.rand(3).tolist(),
        [random.gauss(0, 1) for _ in range(3)],
        [random.random() for _ in range(3)],
    )


@pytest.mark.parametrize("consumed", [0, 1, 2])
def test_generators_go_on_where_they_were(consumed):
    for _ in range(consumed):
        random.gauss(0, 1)
        np.random.standard_normal()
        torch.randn(1)
    packed = random_state()
    expected = draws()
    draws()
    restore_random_state(packed)
    assert draws() == expected


def load_optimizer_tensors(model, optimizer, tensors):
    saved = {name: (each.shape, each.dtype) for name, each in tensors.items()}
    targets = optimizer_targets(model, optimizer, saved)
    for name, target in targets.items():
        target.copy_(tensors[name])
    set_optimizer_state(model, optimizer, targets)


def trained(steps=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    optimizer = build_optimizer(OptimizerConfig(), model)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return model, optimizer


def test_optimizer_state_comes_back_by_name():
    tensors = optimizer_tensors(*trained())
    assert {"exp_avg/0.weight", "exp_avg_sq/1.bias", "step/0.bias"} <= set(tensors)
    model, optimizer = trained(steps=0)
    load_optimizer_tensors(model, optimizer, tensors)
    again = optimizer_tensors(model, optimizer)
    assert set(again) == set(tensors)
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_a_run_saved_before_its_first_step_has_no_state():
    model, optimizer = trained(steps=0)
    assert optimizer_tensors(model, optimizer) == {}
    load_optimizer_tensors(model, optimizer, {})
    assert optimizer_tensors(model, optimizer) == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors.pop("exp_avg/0.weight"),
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith("/0.weight")],
        lambda tensors: tensors.update({"exp_avg/9.weight": torch.ones(1)}),
        lambda tensors: tensors.update({"exp_avg/0.weight": torch.ones(4, 4)}),
    ],
)
def test_state_that_does_not_fit_is_refused(spoil):
    tensors = optimizer_tensors(*trained())
    spoil(tensors)
    model, optimizer = trained(steps=0)
    with pytest.raises(ProjectError, match="does not fit the model") as error:
        load_optimizer_tensors(model, optimizer, tensors)
    assert error.value.code == "CKP007"
