"""The guard's verdict on a device that is not waited for: updates are skipped from the bad step on."""

import pytest
import torch

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import OptimizerConfig
from neobert.errors import ProjectError
from neobert.families.linear import WHOLE, Layout
from neobert.optim import build_optimizer, step_unless
from neobert.training.guards.loss_guard import FiniteGuard
from tests.refusals import refusal_of

GOOD, BAD = torch.tensor(1.0), torch.tensor(float("nan"))


@pytest.fixture
def late_guard(tmp_path):
    """A guard that behaves as on a GPU; the fused CPU kernel honours the same flag."""
    guard = FiniteGuard(torch.device("cpu"), tmp_path / "nonfinite.json", memory_steps=5)
    guard._is_on_gpu, guard._recent = True, type(guard._recent)(maxlen=5)
    return guard


def test_no_update_is_made_from_the_bad_step_on(late_guard, tmp_path):
    model = torch.nn.Linear(4, 4)
    optimizer = build_optimizer(OptimizerConfig(lr=0.1), model)
    weights = []
    for step, norm in enumerate([GOOD, BAD, GOOD], start=1):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        late_guard.remember(step, [{"sample_ids": torch.tensor([step])}])
        late_guard.judge(step, GOOD, norm)
        step_unless(late_guard.verdict, optimizer)
        weights.append(model.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    refusal_of(late_guard.check, "NAN001", "step 2")
    assert (tmp_path / "nonfinite.json").read_text() == '{"step": 2, "microbatches": [{"sample_ids": [2]}]}'


def test_an_error_of_several_ranks_names_the_reports_of_all(tmp_path):
    own = tmp_path / "nonfinite_rank1.json"
    guard = FiniteGuard(torch.device("cpu"), own, memory_steps=1, reports="nonfinite_rank*.json")
    with pytest.raises(ProjectError) as stop:
        guard.judge(3, BAD, GOOD)
    assert own.is_file()
    assert str(tmp_path / "nonfinite_rank*.json") in stop.value.hint


def moved(make_optimizer, verdict):
    """Step twice, the second time under a verdict; return whether weights or state have changed then."""
    model = torch.nn.Linear(4, 4)
    optimizer = make_optimizer(model)
    kept = []
    for is_bad in (torch.tensor(False), verdict):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan") if kept and verdict else 1.0)
        step_unless(is_bad, optimizer)
        state = [value for state in optimizer.state.values() for value in state.values()]
        kept.append([each.detach().clone() for each in (*model.parameters(), *state)])
    return not all(torch.equal(before, after) for before, after in zip(*kept, strict=True))


@pytest.mark.parametrize("name", [*OPTIMIZERS, "sgd of torch, which cannot skip on the device"])
def test_every_optimizer_leaves_weights_and_state_alone_in_a_bad_step(name):
    config = OptimizerConfig(name=name if name in OPTIMIZERS else "adamw", lr=0.1)

    def build(model):
        if name in OPTIMIZERS:
            return build_optimizer(config, model, lambda: {"weight": Layout(WHOLE)})
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    assert moved(build, torch.tensor(False))
    assert not moved(build, torch.tensor(True))


def test_an_optimizer_that_ignores_the_guard_is_caught(monkeypatch):
    """Plant the fault: a claim to skip on the device that is not true."""
    monkeypatch.setattr(torch.optim.RMSprop, "_step_supports_amp_scaling", True, raising=False)
    assert moved(lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1), torch.tensor(True))


def test_good_steps_are_made(late_guard):
    model = torch.nn.Linear(4, 4)
    optimizer = build_optimizer(OptimizerConfig(lr=0.1), model)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    late_guard.judge(1, GOOD, GOOD)
    step_unless(late_guard.verdict, optimizer)
    late_guard.check()
    assert not torch.equal(before, model.weight)


def test_a_step_that_is_forgotten_is_still_named(tmp_path):
    guard = FiniteGuard(torch.device("cpu"), tmp_path / "nonfinite.json", memory_steps=1)
    refusal_of(guard.judge, "NAN001", "step 3 is not finite", 3, BAD, GOOD)
    assert (tmp_path / "nonfinite.json").read_text() == '{"step": 3}'


def test_a_full_disk_does_not_hide_what_is_wrong_with_the_run(tmp_path, caplog):
    guard = FiniteGuard(torch.device("cpu"), tmp_path / "gone" / "nonfinite.json", memory_steps=1)
    refusal_of(guard.judge, "NAN001", "step 3 is not finite", 3, BAD, GOOD)
    assert "the samples of step 3 could not be written" in caplog.text
