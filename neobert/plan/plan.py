"""The plan: what follows from a config on a device, each value with its reason. Never written back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from neobert.config.schedules import Schedule
from neobert.families.shape import ModelShape
from neobert.plan.derived import Derived
from neobert.plan.hardware import Assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Predicted properties of a run. Sizes in MiB, times in seconds unless the name says otherwise."""

    assumptions: Assumptions
    schedule: Schedule
    shape: ModelShape
    task: Derived[str]
    world_size: Derived[int]
    max_length: Derived[int]
    vocab_size: Derived[int]
    num_parameters: Derived[int]
    num_linear_parameters: Derived[int]
    tokens_per_microbatch: Derived[int]
    tokens_per_step: Derived[int]
    global_batch_size: Derived[int]
    fill: Derived[float]
    total_tokens: Derived[int]
    tokens_per_parameter: Derived[float]
    flops_per_token: Derived[float]
    attainable_flops: Derived[float]
    step_time_s: Derived[float]
    tokens_per_second: Derived[float]
    mfu: Derived[float]
    eta_s: Derived[float]
    kernels: Derived[str]
    attention: Derived[str]
    save_interval_steps: Derived[int]
    num_saves: Derived[int]
    first_save_step: Derived[int]
    minutes_at_risk: Derived[float]
    checkpoint_mib: Derived[float]
    checkpoint_tree_mib: Derived[float]
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

    def derived(self) -> Iterator[tuple[str, Derived[Any]]]:
        """Yield every derived value with its name, in the order of the fields."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Derived):
                yield field.name, value
