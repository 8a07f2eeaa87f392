"""The guard's verdict on a device that is not waited for: updates are skipped from the bad step on."""

from __future__ import annotations

import pytest
import torch

from neobert.config.schema import OptimizerConfig
from neobert.errors import ProjectError
from neobert.optim import build_optimizer
from neobert.training.guards.finite import FiniteGuard

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
        late_guard.judge(step, GOOD, norm, optimizer)
        optimizer.step()
        weights.append(model.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    with pytest.raises(ProjectError, match="step 2"):
        late_guard.check()
    assert (tmp_path / "nonfinite.json").read_text() == '{"step": 2, "microbatches": [{"sample_ids": [2]}]}'


def test_good_steps_are_made(late_guard):
    model = torch.nn.Linear(4, 4)
    optimizer = build_optimizer(OptimizerConfig(lr=0.1), model)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    late_guard.judge(1, GOOD, GOOD, optimizer)
    optimizer.step()
    late_guard.check()
    assert not torch.equal(before, model.weight)


def test_a_step_that_is_forgotten_is_still_named(tmp_path):
    guard = FiniteGuard(torch.device("cpu"), tmp_path / "nonfinite.json", memory_steps=1)
    with pytest.raises(ProjectError, match="step 3 is not finite"):
        guard.judge(3, BAD, GOOD, build_optimizer(OptimizerConfig(), torch.nn.Linear(1, 1)))
    assert (tmp_path / "nonfinite.json").read_text() == '{"step": 3}'


def test_a_full_disk_does_not_hide_what_is_wrong_with_the_run(tmp_path, caplog):
    guard = FiniteGuard(torch.device("cpu"), tmp_path / "gone" / "nonfinite.json", memory_steps=1)
    with pytest.raises(ProjectError, match="step 3 is not finite") as error:
        guard.judge(3, BAD, GOOD, build_optimizer(OptimizerConfig(), torch.nn.Linear(1, 1)))
    assert error.value.code == "NAN001"
    assert "the samples of step 3 could not be written down" in caplog.text
