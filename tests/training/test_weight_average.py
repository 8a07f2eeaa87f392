"""The average of the weights: its values, in evaluations, in checkpoints, over kills and resumes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neobert.config import from_dict
from neobert.optim.weight_average import WeightAverage, decay_at
from neobert.plan.memory import state_values
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.training.checkpoint.content import OPTIMIZER_FILE
from neobert.training.loop import steps

AVERAGED = {"trainer": {"ema_decay": 0.8}}


def test_the_average_is_that_of_the_formula():
    model, generator = nn.Linear(3, 2), torch.Generator().manual_seed(0)
    average = WeightAverage(model, 0.5)
    expected = model.weight.detach().double()
    for step in range(1, 30):
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3, generator=generator))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    assert torch.allclose(average.of(model.weight).double(), expected, rtol=1e-6)


def test_the_decay_rises_to_its_limit():
    decays = [decay_at(step, 0.99) for step in range(1, 1000)]
    assert decays == sorted(decays)
    assert (decays[0], decays[-1]) == (2 / 11, 0.99)


def test_an_exchange_is_undone_to_the_bit():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight.mul_(1 / 3)
    weight, mean = model.weight.detach().clone(), average.of(model.weight).clone()
    with average.in_place_of_weights():
        assert model.weight.equal(mean)
        assert average.of(model.weight).equal(weight)
    assert model.weight.equal(weight)
    assert average.of(model.weight).equal(mean)


def test_a_killed_run_resumes_to_the_same_weights_average_and_evaluations(make_run, run, exact, monkeypatch):
    whole, killed = make_run("whole", **AVERAGED), make_run("killed", **AVERAGED)
    assert run(whole) == 0
    with monkeypatch.context() as patch:
        _fail_at(patch, 8)
        with pytest.raises(ZeroDivisionError):
            run(killed)
    assert run(killed) == 0
    assert exact(killed) == exact(whole)
    first, second = (_checkpoint(run_dir, 12) for run_dir in (whole, killed))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_training_is_unchanged_and_the_average_is_evaluated_and_exported(make_run, run, exact, uninterrupted):
    run_dir = make_run(**AVERAGED)
    assert run(run_dir) == 0
    lines = exact(run_dir)
    assert [_training(line) for line in lines] == [_training(line) for line in uninterrupted]
    later = [
        (line, plain)
        for line, plain in zip(lines, uninterrupted, strict=True)
        if line["step"] and "eval/loss" in line
    ]
    assert later
    assert all(line["eval/loss"] != plain["eval/loss"] for line, plain in later)
    tensors = _checkpoint(run_dir, 12)
    name = "model.encoder.weight"
    assert not tensors[name].equal(tensors[f"weight/{name}"])


@pytest.mark.parametrize(("first", "then"), [(None, 0.8), (0.8, None)])
def test_it_may_be_switched_at_a_resume(make_run, run, exact, uninterrupted, monkeypatch, first, then):
    run_dir = make_run(trainer={"ema_decay": first})
    with monkeypatch.context() as patch:
        _fail_at(patch, 8)
        with pytest.raises(ZeroDivisionError):
            run(run_dir)
    make_run(trainer={"ema_decay": then})
    assert run(run_dir) == 0
    assert [_training(line) for line in exact(run_dir)] == [_training(line) for line in uninterrupted]
    names = _checkpoint(run_dir, 12)
    assert any(name.startswith("weight/") for name in names) == (then is not None)


def test_the_plan_counts_it():
    plain, averaged = (from_dict({"trainer": {"ema_decay": decay}}) for decay in (None, 0.9))
    counts = type("Counts", (), {"total": 1000, "linear": 600})
    assert state_values(averaged, counts).value == state_values(plain, counts).value + 1000


def _fail_at(patch, step):
    real = steps.run_step

    def failing(trainer):
        if trainer.progress.step == step:
            raise ZeroDivisionError
        real(trainer)

    patch.setattr(steps, "run_step", failing)


def _training(line):
    return {name: value for name, value in line.items() if not name.startswith("eval/")}


def _checkpoint(run_dir, step):
    folder = run_dir / "checkpoints" / str(step)
    return load_file(folder / "model.safetensors") | load_file(folder / STATE_DIR / OPTIMIZER_FILE)
