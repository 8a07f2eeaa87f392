"""Construction of optimizers and schedulers, and optimizer steps that skip a bad update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schedules import build_schedule, learning_rate_at
from neobert.config.schema import OptimizerConfig, SchedulerConfig
from neobert.families.linear import Layout

log = logging.getLogger(__name__)


def build_optimizer(
    config: OptimizerConfig, model: nn.Module, layouts: Callable[[], Mapping[str, Layout]] = dict
) -> Optimizer:
    """Build the optimizer `optimizer.name` for the trainable parameters.

    The learning rate of the first parameter group is `optimizer.lr`; one LambdaLR scales all groups.
    `layouts` returns the layouts of the blocks' matrices by name, for Muon. Raises `ProjectError` MOD005 for
    Muon without layouts.
    """
    kind = OPTIMIZERS[config.name]
    needed = (layouts,) if kind.updates_matrices_by_muon else ()
    optimizer: Optimizer = import_module(f"neobert.optim.{kind.module}").build(config, model, *needed)
    if not skips_update_on_device(optimizer):
        log.info(
            "optimizer %s cannot skip an update with NaN or a loss spike on the device: on a GPU, the host "
            "synchronizes at every step",
            config.name,
        )
    return optimizer


def skips_update_on_device(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's `step` skips the update on the device if `found_inf` is set.

    Checks the attribute that torch's GradScaler uses, which torch sets for its fused optimizers.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def step_unless(is_bad: Tensor | None, optimizer: Optimizer) -> None:
    """Step the optimizer, unless `is_bad` (a boolean scalar tensor on the device) is true.

    A skipped step changes neither weights nor optimizer state. None: always step. For an optimizer that
    cannot skip on the device, the host waits for `is_bad`.
    """
    if is_bad is not None and skips_update_on_device(optimizer):
        optimizer.found_inf = is_bad.to(torch.float32)  # type: ignore[attr-defined]  # torch's own way
    elif is_bad is not None and bool(is_bad):
        return
    optimizer.step()


def clip_gradients(
    optimizer: Optimizer, parameters: Iterable[nn.Parameter], limit: float, norm: Tensor
) -> None:
    """Have the next update scale the gradients by limit / norm, if their total norm exceeds `limit`.

    torch's fused Adam and AdamW do it themselves on a GPU; else the gradients are scaled here.
    """
    if isinstance(optimizer, Adam) and optimizer.defaults["fused"] and norm.is_cuda:
        # torch's way for gradients of a scaled loss: the update divides by it what it reads anyway, and a
        # pass over all gradients is saved. It rounds differently: on a CPU, losses stay equal to 0.2.
        optimizer.grad_scale = (norm / limit).clamp(min=1.0)  # type: ignore[attr-defined]
    else:
        clip_grads_with_norm_(parameters, limit, norm)


def build_scheduler(optimizer: Optimizer, config: SchedulerConfig, max_steps: int) -> LambdaLR:
    """Build the learning-rate scheduler of a run of `max_steps`, with the schedule function of the plan.

    Step it once per optimizer step, independent of accumulation and world size.
    """
    schedule = build_schedule(config, max_steps)
    return LambdaLR(optimizer, lambda step: learning_rate_at(step, 1.0, schedule))


def fast_forward(scheduler: LambdaLR, step: int) -> None:
    """Set the scheduler and the learning rates to an optimizer step, without replaying earlier steps."""
    factors = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    rates = [base * factor(step) for base, factor in factors]
    state = {"last_epoch": step, "_last_lr": rates, "lr_lambdas": [None] * len(rates)}
    scheduler.load_state_dict(state)
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
