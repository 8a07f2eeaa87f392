"""Derive the plan from a config, a device and, where there is one, a measurement. Pure."""

from __future__ import annotations

import math
from typing import Any

from neobert.config.schema import ModelConfig, RunConfig, TokenizerConfig
from neobert.plan.derived import Derived, Measured
from neobert.plan.flops import (
    attainable_flops,
    flops_per_token,
    peak_at_precision,
    ridge_width,
    segment_tokens,
)
from neobert.plan.hardware import Assumptions
from neobert.plan.memory import predict_memory
from neobert.plan.parameters import VOCAB_MULTIPLE, ParameterCount, count_parameters, round_up
from neobert.plan.plan import Plan
from neobert.plan.saves import plan_saves
from neobert.plan.schedule import Schedule, learning_rate_at, schedule_of
from neobert.plan.units import SECONDS_PER_HOUR

ASSUMED_TOKENIZER_SIZE = 30_522
PACKED_FILL = 0.99
NO_MEASUREMENT = Measured(step_time_s=None, memory_mib=None, source="")

Values = dict[str, Derived[Any]]


def build_plan(config: RunConfig, assumptions: Assumptions, measured: Measured | None = None) -> Plan:
    """Derive everything that follows from `config` on the device that `assumptions` describes."""
    measured = measured or NO_MEASUREMENT
    vocab_size = _vocab_size(config.model, config.tokenizer)
    counts = count_parameters(config.model, vocab_size.value)
    schedule = schedule_of(config.scheduler, config.trainer.max_steps)
    batch = _batch(config, counts)
    time = _time(config, assumptions, measured, batch, _work(config, counts, vocab_size.value, batch))
    return Plan(
        assumptions=assumptions,
        schedule=schedule,
        vocab_size=vocab_size,
        **_size(config, counts, assumptions),
        **batch,
        **time,
        **plan_saves(config, counts, time["step_time_s"]),
        **_memory(config, assumptions, measured, counts, batch),
        **_rates(config, schedule),
    )


def _vocab_size(model: ModelConfig, tokenizer: TokenizerConfig) -> Derived[int]:
    if model.vocab_size is not None:
        return Derived(model.vocab_size, "model.vocab_size as given")
    if tokenizer.vocab_size is not None:
        rounded = round_up(tokenizer.vocab_size, VOCAB_MULTIPLE)
        return Derived(
            rounded, f"tokenizer.vocab_size {tokenizer.vocab_size:,} rounded up to a multiple of 128"
        )
    rounded = round_up(ASSUMED_TOKENIZER_SIZE, VOCAB_MULTIPLE)
    return Derived(
        rounded, f"no vocab_size is given: BERT's {ASSUMED_TOKENIZER_SIZE:,} assumed, rounded up to 128"
    )


def _size(config: RunConfig, counts: ParameterCount, assumptions: Assumptions) -> Values:
    model = config.model
    ratio = assumptions.peak_flops_per_device / assumptions.hbm_bytes_per_s
    return {
        "num_parameters": Derived(
            counts.total,
            f"{model.num_hidden_layers} blocks of width {model.hidden_size}: {counts.linear:,} in matrices, "
            f"{counts.norms:,} in norms, {counts.embeddings:,} embedding, {counts.decoder:,} in the decoder",
        ),
        "num_linear_parameters": Derived(counts.linear, "the blocks' matrices: qkv, out, gate, up, down"),
        "min_hidden_size": Derived(
            ridge_width(assumptions),
            f"4/3 x peak / bandwidth = 4/3 x {ratio:.0f} FLOP per byte on {assumptions.device_name}: "
            "narrower products wait for memory",
        ),
    }


def _batch(config: RunConfig, counts: ParameterCount) -> Values:
    trainer, distributed = config.trainer, config.distributed
    rows, accumulation = trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps
    world = distributed.nproc_per_node * distributed.nnodes
    length = config.datacollator.max_length or config.dataset.max_seq_length
    fill = _fill(config, length)
    tokens_per_step = rows * length * accumulation * world
    total = round(tokens_per_step * trainer.max_steps * fill.value)
    return {
        "world_size": Derived(world, f"{distributed.nproc_per_node} per node x {distributed.nnodes} nodes"),
        "max_length": Derived(length, "datacollator.max_length, else dataset.max_seq_length"),
        "tokens_per_microbatch": Derived(rows * length, f"{rows} rows x {length} tokens"),
        "tokens_per_step": Derived(
            tokens_per_step,
            f"{rows} rows x {length} tokens x {accumulation} microbatches x {world} processes",
        ),
        "global_batch_size": Derived(
            rows * accumulation * world, f"{rows} rows x {accumulation} microbatches x {world} processes"
        ),
        "fill": fill,
        "total_tokens": Derived(
            total,
            f"{tokens_per_step:,} tokens per step x {trainer.max_steps:,} steps x fill {fill.value:.2f}",
        ),
        "tokens_per_parameter": Derived(
            total / counts.total, f"{total:,} tokens / {counts.total:,} parameters"
        ),
    }


def _fill(config: RunConfig, length: int) -> Derived[float]:
    if config.datacollator.pack_sequences:
        return Derived(PACKED_FILL, "share of a packed microbatch that is text")
    document = segment_tokens(config, length, is_packed=True)
    return Derived(document / length, f"documents of about {document} tokens, padded to {length}")


def _work(config: RunConfig, counts: ParameterCount, vocab_size: int, batch: Values) -> Values:
    is_packed = config.datacollator.pack_sequences
    segment = segment_tokens(config, batch["max_length"].value, is_packed=is_packed)
    flops = flops_per_token(config, counts, vocab_size, segment)
    kind = "assumed mean document" if is_packed else "padded row"
    return {
        "flops_per_token": Derived(
            flops,
            f"6 x {counts.linear:,} + the decoder on predicted positions + attention over {segment} ({kind})",
        )
    }


def _time(
    config: RunConfig, assumptions: Assumptions, measured: Measured, batch: Values, work: Values
) -> Values:
    world, tokens = batch["world_size"].value, batch["tokens_per_step"].value
    flops = work["flops_per_token"].value * tokens
    attainable = attainable_flops(config, assumptions)
    step = _step_time(flops, attainable, world, assumptions, measured)
    peak = peak_at_precision(config, assumptions)
    eta = step.value * config.trainer.max_steps
    return work | {
        "attainable_flops": Derived(
            attainable,
            f"{peak:.3g} FLOP/s in {config.trainer.mixed_precision} on {assumptions.device_name}"
            + (
                ""
                if attainable == peak
                else f", lowered for hidden_size {config.model.hidden_size} below the ridge"
            ),
        ),
        "step_time_s": step,
        "tokens_per_second": Derived(
            tokens * batch["fill"].value / step.value,
            f"{tokens:,} tokens x fill / {step.value:.3g} s per step",
        ),
        "mfu": Derived(
            flops / (step.value * world * assumptions.peak_flops_per_device),
            f"{flops:.3g} FLOP / {step.value:.3g} s / {world} x {assumptions.peak_flops_per_device:.3g} FLOP/s",
        ),
        "eta_s": Derived(eta, f"{config.trainer.max_steps:,} steps x {step.value:.3g} s"),
        "cost": _cost(config.guard.price_per_gpu_hour, world, eta),
    }


def _step_time(
    flops: float, attainable: float, world: int, assumptions: Assumptions, measured: Measured
) -> Derived[float]:
    if measured.step_time_s is not None:
        return Derived(measured.step_time_s, f"measured: {measured.source}")
    return Derived(
        flops / (assumptions.mfu * attainable * world),
        f"estimate: {flops:.3g} FLOP / ({assumptions.mfu:.2f} x {attainable:.3g} FLOP/s x {world})",
    )


def _cost(price: float | None, world: int, eta_s: float) -> Derived[float | None]:
    if price is None:
        return Derived(None, "guard.price_per_gpu_hour is not given")
    hours = world * eta_s / SECONDS_PER_HOUR
    return Derived(price * hours, f"{price:g} per GPU-hour x {hours:.1f} GPU-hours")


def _memory(
    config: RunConfig, assumptions: Assumptions, measured: Measured, counts: ParameterCount, batch: Values
) -> Values:
    tokens = batch["tokens_per_microbatch"].value
    vocab_size = _vocab_size(config.model, config.tokenizer).value
    parts = predict_memory(config, counts, vocab_size, tokens, is_cuda=assumptions.is_cuda)
    checkpointing = "with" if config.trainer.gradient_checkpointing else "without"
    predicted = Derived(
        parts.total_mib, "estimate: weights + gradients + optimizer + activations + logits + runtime"
    )
    taken = measured.memory_mib
    return {
        "weights_mib": Derived(parts.weights_mib, f"{counts.total:,} fp32 weights and, in bf16, their copy"),
        "gradients_mib": Derived(parts.gradients_mib, f"{counts.total:,} fp32 gradients"),
        "optimizer_mib": Derived(parts.optimizer_mib, f"two fp32 moments of {counts.total:,}"),
        "activations_mib": Derived(
            parts.activations_mib, f"{tokens:,} tokens per microbatch, {checkpointing} gradient checkpointing"
        ),
        "logits_mib": Derived(parts.logits_mib, f"predicted positions of {tokens:,} tokens x {vocab_size:,}"),
        "runtime_mib": Derived(parts.runtime_mib, "context, kernels and workspaces, assumed"),
        "memory_mib": predicted if taken is None else Derived(taken, f"measured: {measured.source}"),
        "device_memory_mib": Derived(assumptions.device_memory_mib, assumptions.device_name),
    }


def _rates(config: RunConfig, schedule: Schedule) -> Values:
    peak, last = config.optimizer.lr, config.trainer.max_steps - 1
    shape = (
        f"{schedule.name}: warm-up {schedule.warmup_steps:,}, decay from {schedule.decay_start:,} "
        f"to {schedule.decay_end:,}, floor {schedule.floor:g} of {peak:g}"
    )

    def rate(step: int) -> Derived[float]:
        return Derived(learning_rate_at(step, peak, schedule), f"step {step:,} of {shape}")

    return {
        "warmup_steps": Derived(
            schedule.warmup_steps, "scheduler.warmup_percent, else scheduler.warmup_steps"
        ),
        "decay_start": Derived(schedule.decay_start, shape),
        "decay_end": Derived(schedule.decay_end, "scheduler.total_steps, else trainer.max_steps"),
        "learning_rate_first": rate(0),
        "learning_rate_middle": rate(math.floor(last / 2)),
        "learning_rate_last": rate(last),
    }
