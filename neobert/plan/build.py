"""Construction of the plan: values derived from a config for a device, never written back to the config."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from neobert.config.schedules import Schedule, build_schedule, learning_rate_at
from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.families.table import model_shape
from neobert.plan.derived import Derived, Measured, Values
from neobert.plan.epochs import plan_epochs, plan_steps
from neobert.plan.hardware import Assumptions
from neobert.plan.kernels import plan_kernels
from neobert.plan.memory import plan_memory
from neobert.plan.pace import plan_pace
from neobert.plan.saves import plan_saves
from neobert.plan.size import plan_batch, plan_size
from neobert.plan.vocabulary import configured_size, plan_vocabulary
from neobert.tasks.specs import reported_metrics, spec_of


class Plan(NamedTuple):
    """Predicted properties of a run. Units are part of the field names (`_mib`, `_s`, `_steps`)."""

    assumptions: Assumptions
    schedule: Schedule
    shape: ModelShape
    task: Derived[str]
    world_size: Derived[int]
    max_length: Derived[int]
    vocab_size: Derived[int]
    num_parameters: Derived[int]
    num_linear_parameters: Derived[int]
    embedding_multiplier: Derived[float]
    tokens_per_microbatch: Derived[int]
    tokens_per_step: Derived[int]
    global_batch_size: Derived[int]
    fill: Derived[float]
    max_steps: Derived[int]
    epochs: Derived[float | None]
    total_tokens: Derived[int]
    tokens_per_parameter: Derived[float]
    flops_per_token: Derived[float]
    attainable_flops: Derived[float]
    step_time_s: Derived[float]
    tokens_per_second: Derived[float]
    mfu: Derived[float]
    mfu_whole_attention: Derived[float]
    eta_s: Derived[float]
    kernels: Derived[str]
    attention: Derived[str]
    low_precision: Derived[str]
    save_interval_steps: Derived[int]
    num_saves: Derived[int]
    first_save_step: Derived[int]
    minutes_at_risk: Derived[float]
    checkpoint_mib: Derived[float]
    checkpoint_tree_mib: Derived[float]
    reshards: Derived[bool | None]
    weights_mib: Derived[float]
    gradients_mib: Derived[float]
    optimizer_mib: Derived[float]
    activations_mib: Derived[float]
    logits_mib: Derived[float]
    runtime_mib: Derived[float]
    memory_mib: Derived[float]
    device_memory_mib: Derived[float | None]
    min_hidden_size: Derived[float]
    cost: Derived[float | None]
    warmup_steps: Derived[int]
    decay_start: Derived[int]
    decay_end: Derived[int]
    learning_rate_first: Derived[float]
    learning_rate_middle: Derived[float]
    learning_rate_last: Derived[float]

    def derived_values(self) -> Iterator[tuple[str, Derived[Any]]]:
        """Yield every derived value with its name, in the order of the fields."""
        for name, value in self._asdict().items():
            if isinstance(value, Derived):
                yield name, value


NO_MEASUREMENT = Measured(step_time_s=None, memory_mib=None, source="")


def build_plan(config: RunConfig, assumptions: Assumptions, measured: Measured | None = None) -> Plan:
    """Derive the plan of a config for a device. `measured` values, if given, replace estimates.

    Raises `ProjectError` MOD006 if the section `model` does not describe a valid model.
    """
    measured = measured or NO_MEASUREMENT
    max_steps = plan_steps(config, assumptions.epoch)
    config = replace(config, trainer=replace(config.trainer, max_steps=max_steps.value))
    tokenizer = assumptions.tokenizer or configured_size(config.tokenizer)
    vocab_size = plan_vocabulary(config, tokenizer)
    shape = model_shape(config, vocab_size.value)
    head = spec_of(config).head(config, shape)
    shape = replace(shape, parameters=replace(shape.parameters, decoder=head.parameters))
    schedule = build_schedule(config.scheduler, config.trainer.max_steps)
    batch = plan_batch(config, shape)
    pace = plan_pace(config, assumptions, measured, shape, batch)
    kernels = plan_kernels(config, assumptions, pace["flops_per_token"].value)
    memory = plan_memory(
        config,
        shape,
        batch["tokens_per_microbatch"].value,
        assumptions,
        measured,
        kernels["kernels"].value,
    )
    return Plan(
        assumptions=assumptions,
        schedule=schedule,
        task=_plan_task(config),
        shape=shape,
        vocab_size=vocab_size,
        max_steps=max_steps,
        epochs=plan_epochs(config, max_steps.value, assumptions.epoch),
        **plan_size(shape, assumptions),
        **batch,
        **pace,
        **kernels,
        **plan_saves(config, shape, pace["step_time_s"]),
        **memory,
        **_plan_rates(config, schedule),
    )


def _plan_task(config: RunConfig) -> Derived[str]:
    metrics = (
        f"{each.label} ({'higher' if each.is_higher_better else 'lower'} is better)"
        for each in reported_metrics(config)
    )
    return Derived(config.task, f"{spec_of(config).summary}; metrics: {', '.join(metrics)}")


def _plan_rates(config: RunConfig, schedule: Schedule) -> Values:
    peak, last = config.optimizer.lr, config.trainer.max_steps - 1
    shape = (
        f"{schedule.name}: warm-up {schedule.warmup_steps:,}, decay from {schedule.decay_start:,} "
        f"to {schedule.decay_end:,}, floor {schedule.floor:g} x the peak {peak:g}"
    )
    warmup = "scheduler.warmup_percent, else scheduler.warmup_steps"
    return {
        "warmup_steps": Derived(schedule.warmup_steps, warmup),
        "decay_start": Derived(schedule.decay_start, shape),
        "decay_end": Derived(schedule.decay_end, "scheduler.total_steps, else trainer.max_steps"),
        "learning_rate_first": _derive_rate(0, peak, schedule, shape),
        "learning_rate_middle": _derive_rate(math.floor(last / 2), peak, schedule, shape),
        "learning_rate_last": _derive_rate(last, peak, schedule, shape),
    }


def _derive_rate(step: int, peak: float, schedule: Schedule, shape: str) -> Derived[float]:
    return Derived(learning_rate_at(step, peak, schedule), f"step {step:,} of {shape}")
