"""Rounding to fp8 in the products of a block, and what its loss says in steps."""

from __future__ import annotations

import argparse
import json

import fp8_loss
import pytest
import torch
import trials
from fp8_trainer import BACKWARD, FORWARD, RoundedLinear, rounded
from torch import nn


@pytest.fixture
def layer():
    torch.manual_seed(0)
    made = RoundedLinear.sharing(nn.Linear(64, 96, bias=False))
    made.register_buffer("largest", torch.zeros(3), persistent=False)
    return made


def test_a_scale_is_that_of_the_step_before_with_room_for_twice_its_magnitude():
    largest, values = torch.tensor(1.0), torch.tensor([0.3, 1.9, 4.0])
    once = rounded(values, largest, FORWARD)
    assert once.tolist() == [0.3125, 1.875, 3.5]
    assert largest == 4.0
    assert rounded(values, largest, FORWARD)[-1] == 4.0


def test_an_unknown_scale_is_that_of_the_values():
    values = torch.tensor([1e-6, -4e-6])
    found = rounded(values, torch.zeros([]), BACKWARD)
    assert (found / values - 1).abs().max() < 2**-3
    assert rounded(torch.zeros(2), torch.zeros([]), FORWARD).tolist() == [0, 0]


def test_all_three_products_have_rounded_operands(layer):
    values, grad = torch.randn(8, 64, requires_grad=True), torch.randn(8, 96) * 1e-5
    product = layer(values)
    product.backward(grad)
    unknown = torch.zeros(3)
    x = rounded(values.detach(), unknown[0], FORWARD)
    weight = rounded(layer.weight.detach(), unknown[1], FORWARD)
    g = rounded(grad, unknown[2], BACKWARD)
    torch.testing.assert_close(product, x @ weight.t())
    torch.testing.assert_close(values.grad, g @ weight)
    torch.testing.assert_close(layer.weight.grad, g.t() @ x)
    assert torch.equal(
        layer.largest, torch.stack([each.abs().max() for each in (values, layer.weight, grad)])
    )


def test_a_model_is_evaluated_without_rounding(layer):
    values = torch.randn(8, 64)
    assert torch.equal(layer.eval()(values), values @ layer.weight.t())
    assert layer.largest.tolist() == [0, 0, 0], "nor do its values count for the next step"


LOSSES = {"bf16": (2.0, 2.1), "fp8": (2.05,)}


@pytest.fixture
def chosen(tmp_path):
    """A request whose runs have finished: 100 and 85 steps in bf16, 100 in fp8, of any seed."""
    requested = argparse.Namespace(
        work=tmp_path, results=tmp_path, output=tmp_path / "out", size="tiny", steps=100, report=True
    )
    for name, trial in fp8_loss.trials_of(requested).items():
        losses = [loss for _ in trials.SEEDS for loss in LOSSES[name]]
        lines = [
            {"trial": recipe, "loss": loss, "test_loss": loss, "seconds": 9.0, "tokens": 1}
            for recipe, loss in zip(trial.recipes, losses, strict=True)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        trials.result_path(tmp_path, trial.name).write_text(text)
    return requested


def test_half_of_the_loss_of_fewer_steps_is_half_of_their_number(chosen):
    found = fp8_loss.judge(chosen)
    assert found["steps"]["mean"] == pytest.approx(0.85**0.5)
    assert found["speed_needed"] == round(1.10 / 0.85**0.5, 3)
    assert found["difference"]["mean"] == pytest.approx(0.05)
    fp8_loss.report(chosen)
    assert json.loads((chosen.output / "fp8-loss-tiny.json").read_text())["value"] == 0.922


def test_a_figure_waits_for_all_seeds(chosen):
    path = trials.result_path(chosen.results, fp8_loss.trials_of(chosen)["fp8"].name)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert fp8_loss.judge(chosen)["steps"] is None
    fp8_loss.report(chosen)
    assert json.loads((chosen.output / "fp8-loss-tiny.json").read_text())["is_complete"] is False


def test_both_programs_run_the_same_recipes_but_for_the_shorter_ones(chosen):
    own, low = fp8_loss.trials_of(chosen).values()
    assert own.command[1:] == low.command[1:]
    assert [each for each in own.recipes if each["steps"] == 100] == [*low.recipes]
