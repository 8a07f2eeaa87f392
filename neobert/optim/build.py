"""Construction of optimizers and schedulers, and steps that the finite guard may skip."""

from __future__ import annotations

import logging
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schedules import learning_rate_at, schedule_of
from neobert.config.schema import OptimizerConfig, SchedulerConfig

log = logging.getLogger(__name__)


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """Build the optimizer that `optimizer.name` requests, over the parameters that train.

    The first group's rate is `optimizer.lr`; one LambdaLR drives all groups.
    """
    build = import_module(f"neobert.optim.{OPTIMIZERS[config.name].module}").build
    optimizer: Optimizer = build(config, model)
    if not skips_on_device(optimizer):
        log.info(
            "optimizer %s waits for the device in every step: it cannot skip a bad step on the device",
            config.name,
        )
    return optimizer


def skips_on_device(optimizer: Optimizer) -> bool:
    """Return whether `step` can skip an update on the device, through `found_inf`.

    Reads the attribute that torch's GradScaler checks, which torch sets for its fused optimizers. A test
    verifies it for every optimizer of the table.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_unless(is_bad: Tensor | None, optimizer: Optimizer) -> None:
    """Step the optimizer, unless `is_bad` (a boolean scalar on the device) is true.

    A skipped step changes neither weights nor state. `is_bad` None: the host has already checked this step.
    An optimizer that cannot skip on the device waits for `is_bad` on the host.
    """
    if is_bad is not None and skips_on_device(optimizer):
        optimizer.found_inf = is_bad.to(torch.float32)  # type: ignore[attr-defined]  # torch's own way
    elif is_bad is not None and bool(is_bad):
        return
    optimizer.step()


def build_scheduler(optimizer: Optimizer, config: SchedulerConfig, max_steps: int) -> LambdaLR:
    """Build the schedule of a run of `max_steps`, from the function that the plan and the rules use too.

    It is stepped once per optimizer step, for any accumulation and number of ranks.
    """
    schedule = schedule_of(config, max_steps)
    return LambdaLR(optimizer, lambda step: learning_rate_at(step, 1.0, schedule))


def fast_forward(scheduler: LambdaLR, step: int) -> None:
    """Set the scheduler to an optimizer step. The rate is a function of the step, so nothing is replayed."""
    factors = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    rates = [base * factor(step) for base, factor in factors]
    state = {"last_epoch": step, "_last_lr": rates, "lr_lambdas": [None] * len(rates)}
    scheduler.load_state_dict(state)
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
