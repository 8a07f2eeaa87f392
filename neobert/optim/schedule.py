"""Learning rate scheduler, from the same pure function that the plan and the rules use."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.schedules import learning_rate_at, schedule_of
from neobert.config.schema import SchedulerConfig


def build_scheduler(optimizer: Optimizer, config: SchedulerConfig, max_steps: int) -> LambdaLR:
    """Build the schedule of a run of `max_steps`.

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
