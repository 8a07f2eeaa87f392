"""The optimizer gets the rate that the plan showed, one optimizer step at a time."""

import pytest
import torch

from neobert.config.decays import DECAY_NAMES
from neobert.config.schema import OptimizerConfig, RunConfig, SchedulerConfig, TrainerConfig
from neobert.optim import build_optimizer, build_scheduler, fast_forward

STEPS = 100


def build(**scheduler):
    config = RunConfig(
        optimizer=OptimizerConfig(lr=1e-3),
        scheduler=SchedulerConfig(**scheduler),
        trainer=TrainerConfig(max_steps=STEPS),
    )
    optimizer = build_optimizer(config.optimizer, torch.nn.Linear(2, 2))
    return optimizer, build_scheduler(optimizer, config.scheduler, STEPS)


def rates(**scheduler):
    """The rate of every optimizer step, as the parameter groups see it."""
    optimizer, schedule = build(**scheduler)
    seen = []
    for _ in range(STEPS + 5):
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        seen.append(rate)
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize(("name", "middle"), [("cosine", 0.55), ("linear", 0.55)])
def test_anchors_of_warm_up_plateau_decay_and_floor(name, middle):
    seen = rates(name=name, warmup_steps=10, decay_steps=40, final_lr_ratio=0.1)
    assert seen[0] == pytest.approx(1e-7)
    assert seen[5] == pytest.approx(1e-3 * (1e-4 + 0.9999 / 2))
    assert seen[10] == seen[35] == seen[60] == pytest.approx(1e-3)
    assert seen[80] == pytest.approx(1e-3 * middle)
    assert seen[100] == seen[104] == pytest.approx(1e-4)


@pytest.mark.parametrize("name", DECAY_NAMES)
@pytest.mark.parametrize("step", [0, 1, 9, 10, 55, 61, 80, 100])
def test_fast_forward_lands_where_stepping_does(step, name):
    scheduler = {"name": name, "warmup_steps": 10, "decay_steps": 40}
    optimizer, schedule = build(**scheduler)
    fast_forward(schedule, step)
    resumed = []
    for _ in range(STEPS - step):
        resumed.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert resumed == rates(**scheduler)[step:STEPS]
    assert schedule.last_epoch == STEPS
