"""Throughput, duration and cost of a run."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.plan.derived import Derived, Measured, Values
from neobert.plan.evaluation import plan_evaluations
from neobert.plan.flops import attainable_flops, flops_per_token, peak_at_precision, segment_tokens
from neobert.plan.hardware import Assumptions
from neobert.plan.units import SECONDS_PER_HOUR
from neobert.plurals import counted
from neobert.tasks import spec_of


def plan_pace(
    config: RunConfig,
    assumptions: Assumptions,
    measured: Measured,
    shape: ModelShape,
    batch: Values,
) -> Values:
    """Derive FLOPs, step time, throughput, the share of the peak, ETA and cost."""
    world, tokens = batch["world_size"].value, batch["tokens_per_step"].value
    per_token = _flops_per_token(config, shape, batch["max_length"].value)
    attainable = _attainable(config, shape, assumptions)
    flops = per_token.value * tokens
    step = _step_time(flops, attainable.value * world, assumptions.mfu, measured)
    took = f"{step.value:.3g} s per step"
    pace = Derived(
        tokens * batch["fill"].value / step.value,
        f"{tokens:,} tokens x fill {batch['fill'].value:.2f} / {took}",
    )
    evaluations = plan_evaluations(config, batch, pace.value)
    eta_s = step.value * config.trainer.max_steps + evaluations.value
    steps = f"{counted(config.trainer.max_steps, 'step')} x {took}"
    return {
        "flops_per_token": per_token,
        "attainable_flops": attainable,
        "step_time_s": step,
        "tokens_per_second": pace,
        "mfu": _mfu(config, shape, pace.value, batch, peak_at_precision(config, assumptions)),
        "eta_s": Derived(eta_s, f"{steps} ({step.reason}) + {evaluations.reason}"),
        "cost": _cost(config.guard.price_per_gpu_hour, eta_s / SECONDS_PER_HOUR, world),
    }


def _flops_per_token(config: RunConfig, shape: ModelShape, max_length: int) -> Derived[float]:
    is_packed = config.datacollator.pack_sequences
    segment = segment_tokens(config, max_length, is_packed=is_packed)
    scored = spec_of(config).head(config, shape).scored_positions
    kind = "the assumed mean document" if is_packed else "a padded row"
    return Derived(
        flops_per_token(config, shape, segment),
        f"6 x {shape.parameters.linear:,} + the decoder on {scored} + attention over {segment}, {kind}",
    )


def _attainable(config: RunConfig, shape: ModelShape, assumptions: Assumptions) -> Derived[float]:
    peak, attainable = peak_at_precision(config, assumptions), attainable_flops(config, shape, assumptions)
    reason = f"{peak:.3g} FLOP/s in {config.trainer.mixed_precision} on {assumptions.device_name}"
    if attainable < peak:
        reason += f", lowered because hidden_size {shape.hidden_size} waits for memory"
    return Derived(attainable, reason)


def _step_time(flops: float, attainable: float, mfu: float, measured: Measured) -> Derived[float]:
    if measured.step_time_s is not None:
        return Derived(measured.step_time_s, f"measured: {measured.source}")
    return Derived(
        flops / (mfu * attainable), f"estimate: {flops:.3g} FLOP / ({mfu:.2f} x {attainable:.3g} FLOP/s)"
    )


def _mfu(
    config: RunConfig, shape: ModelShape, tokens_per_second: float, batch: Values, peak: float
) -> Derived[float]:
    """Derive what the trainer will measure: text earns FLOPs and padding none, at the run's precision."""
    world, length = batch["world_size"].value, batch["max_length"].value
    document = segment_tokens(config, length, is_packed=True)
    useful = flops_per_token(config, shape, document)
    return Derived(
        tokens_per_second * useful / (world * peak),
        f"{tokens_per_second:,.0f} tokens/s of text x {useful:.3g} FLOP / {world} x {peak:.3g} FLOP/s",
    )


def _cost(price: float | None, hours: float, world: int) -> Derived[float | None]:
    if price is None:
        return Derived(None, "guard.price_per_gpu_hour is not given")
    gpus = counted(world, "GPU")
    return Derived(hours * world * price, f"{hours:,.1f} h x {gpus} x {price:g} per GPU-hour")
