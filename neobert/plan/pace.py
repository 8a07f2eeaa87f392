"""Throughput, duration and cost of a run and of its evaluations."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schedules import microbatches_before
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.families.shape import ModelShape
from neobert.plan.derived import Derived, Measured, Values
from neobert.plan.hardware import Assumptions
from neobert.plan.size import (
    attainable_flops,
    encoder_flops_per_token,
    flops_per_token,
    peak_at_precision,
    segment_tokens,
)
from neobert.plurals import counted
from neobert.tasks.specs import spec_of
from neobert.units import SECONDS_PER_HOUR

LAUNCHES_S_PER_BLOCK = 3e-3
"""Time in which a processor launches the kernels of a block, forward and backward, one by one. 12 blocks took
31 to 48 ms of the processors next to H100 and H200 cards (docs/learning.md)."""
LAUNCHES_S_PER_STEP = 3e-3
GRAPHED_STEP_S = 12e-3
"""Time to replay a step's CUDA graphs and to launch the optimizer."""
FORWARD_SHARE = 1 / 3
"""Share of the forward pass in the FLOPs of a training step; the backward pass costs twice as much."""


def plan_pace(
    config: RunConfig,
    assumptions: Assumptions,
    measured: Measured,
    shape: ModelShape,
    batch: Values,
) -> Values:
    """Derive FLOPs per token, step time, throughput, MFU, ETA and cost."""
    world, tokens = batch["world_size"].value, batch["tokens_per_step"].value
    per_token = _derive_flops_per_token(config, shape, batch["max_length"].value)
    attainable = _derive_attainable_flops(config, shape, assumptions)
    repeated = _repeated_flops_per_token(config, shape, batch["max_length"].value)
    flops = (per_token.value + repeated) * tokens + world * orthogonalization_flops(config, shape)
    step = _derive_step_time(flops, attainable.value * world, assumptions.mfu, measured)
    if measured.step_time_s is None and assumptions.is_cuda:
        step = max(step, _derive_launch_time(config, shape), key=lambda each: each.value)
    took = f"{step.value:.3g} s per step"
    pace = Derived(
        tokens * batch["fill"].value / step.value,
        f"{tokens:,} tokens x fill {batch['fill'].value:.2f} / {took}",
    )
    held_out = assumptions.epoch and assumptions.epoch.held_out_tokens
    evaluations = plan_evaluations(config, batch, pace.value, held_out)
    microbatches = microbatches_before(config.trainer.max_steps, config.trainer)
    whole_steps = microbatches / config.trainer.gradient_accumulation_steps
    eta_s = step.value * whole_steps + evaluations.value
    steps = f"{counted(config.trainer.max_steps, 'step')} x {took}"
    if whole_steps != config.trainer.max_steps:
        steps = f"{steps} x {whole_steps / config.trainer.max_steps:.1%} for the batch-size warm-up"
    mfu = _derive_mfu(config, shape, pace.value, batch, peak_at_precision(config, assumptions))
    return {
        "flops_per_token": per_token,
        "attainable_flops": attainable,
        "step_time_s": step,
        "tokens_per_second": pace,
        "mfu": mfu,
        "mfu_whole_attention": _derive_full_attention_mfu(
            config, shape, mfu.value, batch["max_length"].value
        ),
        "eta_s": Derived(eta_s, f"{steps} ({step.reason}) + {evaluations.reason}"),
        "cost": _derive_cost(config.guard.price_per_gpu_hour, eta_s / SECONDS_PER_HOUR, world),
    }


def _derive_flops_per_token(config: RunConfig, shape: ModelShape, max_length: int) -> Derived[float]:
    is_packed, task = config.datacollator.pack_sequences, spec_of(config)
    segment = segment_tokens(config, max_length, is_packed=is_packed)
    scored = task.head(config, shape).scored_positions
    kind = "the assumed mean document" if is_packed else "a padded row"
    reason = f"{_describe_flops(shape)} + the decoder on {scored} + attention over {segment} tokens, {kind}"
    passes = task.passes(config)
    if passes.trained > 1:
        reason += f"; {passes.trained} passes"
    if passes.repeated:
        reason += "; a step also repeats the forward pass"
    return Derived(flops_per_token(config, shape, segment), reason)


def _repeated_flops_per_token(config: RunConfig, shape: ModelShape, max_length: int) -> float:
    """Return the FLOPs per token of repeated forward passes, which take time and are not useful."""
    segment = segment_tokens(config, max_length, is_packed=config.datacollator.pack_sequences)
    return spec_of(config).passes(config).repeated * FORWARD_SHARE * encoder_flops_per_token(shape, segment)


def orthogonalization_flops(config: RunConfig, shape: ModelShape) -> float:
    """Return the FLOPs of a step's Newton-Schulz iterations, all computed on every rank; 0 without Muon.

    An iteration on R rows and C columns, R <= C, has two products of R x R x C and one of R x R x R.
    """
    if not OPTIMIZERS[config.optimizer.name].updates_matrices_by_muon:
        return 0.0
    each = sum(
        count * (4 * rows**2 * columns + 2 * rows**3)
        for count, rows, columns in _matrix_shapes(config, shape)
    )
    return float(config.optimizer.muon_ns_steps * shape.num_layers * each)


def _matrix_shapes(config: RunConfig, shape: ModelShape) -> Iterator[tuple[int, int, int]]:
    """Yield the count, the shorter side and the longer side of each kind of matrix in a block."""
    hidden, width, attention = shape.hidden_size, shape.feed_forward_width, shape.attention
    size, is_split = attention.head_size, config.optimizer.muon_split == "heads"
    for heads in (attention.heads, attention.kv_heads, attention.kv_heads):
        rows = size if is_split else heads * size
        yield heads if is_split else 1, min(rows, hidden), max(rows, hidden)
    yield 1, min(attention.heads * size, hidden), max(attention.heads * size, hidden)
    matrices = shape.parameters.linear // shape.num_layers - attention.num_weights(hidden)
    yield matrices // (hidden * width), min(hidden, width), max(hidden, width)


def _describe_flops(shape: ModelShape) -> str:
    scores = f" + 6 x {shape.position_products:,} with relative positions" if shape.position_products else ""
    if not shape.adapter_parameters:
        return f"6 x {shape.parameters.linear:,} weights{scores}"
    adapters = f"6 x {shape.adapter_parameters:,} weights in adapters"
    return f"4 x {shape.parameters.linear:,} frozen weights + {adapters}{scores}"


def _derive_attainable_flops(
    config: RunConfig, shape: ModelShape, assumptions: Assumptions
) -> Derived[float]:
    peak, attainable = peak_at_precision(config, assumptions), attainable_flops(config, shape, assumptions)
    reason = f"{peak:.3g} FLOP/s in {config.trainer.mixed_precision} on {assumptions.device_name}"
    if attainable < peak:
        reason += f", lowered because products at hidden_size {shape.hidden_size} are memory-bound"
    return Derived(attainable, reason)


def _derive_step_time(flops: float, attainable: float, mfu: float, measured: Measured) -> Derived[float]:
    if measured.step_time_s is not None:
        return Derived(measured.step_time_s, f"measured: {measured.source}")
    return Derived(
        flops / (mfu * attainable), f"estimate: {flops:.3g} FLOP / ({mfu:.2f} x {attainable:.3g} FLOP/s)"
    )


def _derive_launch_time(config: RunConfig, shape: ModelShape) -> Derived[float]:
    """Derive the CPU time to launch a step's kernels, which limits the speed of small models."""
    trainer = config.trainer
    if trainer.cuda_graphs:
        return Derived(GRAPHED_STEP_S, "estimate: replays of CUDA graphs and launches of the optimizer")
    blocks = shape.num_layers * trainer.gradient_accumulation_steps
    return Derived(
        LAUNCHES_S_PER_STEP + LAUNCHES_S_PER_BLOCK * blocks * _relative_pass_time(config),
        f"estimate: time to launch the kernels of {counted(blocks, 'block')}, longer than they run",
    )


def _derive_mfu(
    config: RunConfig, shape: ModelShape, tokens_per_second: float, batch: Values, peak: float
) -> Derived[float]:
    """Derive the MFU that the trainer will report: without padding, relative to the peak at its precision."""
    world, length = batch["world_size"].value, batch["max_length"].value
    document = segment_tokens(config, length, is_packed=True)
    useful = flops_per_token(config, shape, document)
    return Derived(
        tokens_per_second * useful / (world * peak),
        f"{tokens_per_second:,.0f} tokens/s of text x {useful:.3g} FLOP / ({world} x {peak:.3g} FLOP/s)",
    )


def _derive_full_attention_mfu(
    config: RunConfig, shape: ModelShape, mfu: float, max_length: int
) -> Derived[float]:
    """Derive the MFU as torchtitan counts it, with attention between all pairs of tokens in a document."""
    document = segment_tokens(config, max_length, is_packed=True)
    useful = flops_per_token(config, shape, document)
    whole = 12 * shape.attention_width * shape.num_layers * document
    share = (useful - shape.attention_flops([document]) / document + whole) / useful
    return Derived(mfu * share, "mfu with all pairs of tokens of a document, including those not attended to")


def _derive_cost(price: float | None, hours: float, world: int) -> Derived[float | None]:
    if price is None:
        return Derived(None, "guard.price_per_gpu_hour is not set")
    gpus = counted(world, "GPU")
    return Derived(hours * world * price, f"{hours:,.1f} h x {gpus} x {price:g} per GPU-hour")


def plan_evaluations(
    config: RunConfig, batch: Values, tokens_per_second: float, held_out: float | None
) -> Derived[float]:
    """Derive the seconds of all evaluations of the run; 0 if the size of an evaluation is unknown.

    `held_out`: tokens of the text that are held out for evaluation; None if unknown.
    """
    tokens = num_evaluation_tokens(config, batch["max_length"].value, batch["fill"].value, held_out)
    if tokens is None:
        return Derived(0.0, "evaluations of unknown size (not included)")
    count, each_s = num_evaluations(config.trainer), evaluation_s(config, tokens, tokens_per_second)
    return Derived(count * each_s, f"{counted(count, 'evaluation')} x {each_s:.3g} s")


def num_evaluations(trainer: TrainerConfig) -> int:
    """Return the number of evaluations: before the first step, every `eval_steps` steps, and at the end."""
    return 1 + num_evaluations_after(0, trainer.max_steps, trainer.eval_steps)


def num_evaluations_after(step: int, last: int, every: int) -> int:
    """Return the number of evaluations after `step`: each `every` steps (0: none), and at step `last`."""
    between = (last - 1) // every - step // every if every else 0
    return between + 1 if step < last else 0


def evaluation_s(config: RunConfig, tokens: float, tokens_per_second: float) -> float:
    """Return the seconds of an evaluation of `tokens` tokens, given the throughput of training."""
    share = FORWARD_SHARE * spec_of(config).passes(config).trained / _relative_pass_time(config)
    return share * tokens / tokens_per_second


def _relative_pass_time(config: RunConfig) -> float:
    """Return the time of all passes over a step's tokens, relative to one forward and backward pass."""
    passes = spec_of(config).passes(config)
    return passes.trained + FORWARD_SHARE * passes.repeated


def num_evaluation_tokens(
    config: RunConfig, max_length: int, fill: float, known: float | None = None
) -> float | None:
    """Return the number of tokens of an evaluation; None if unknown.

    It is the size of the split, or less if `trainer.eval_max_batches` limits it.

    Args:
        fill: share of a microbatch that is not padding.
        known: tokens of the split, counted or estimated from its bytes; None if unknown.
    """
    trainer, split = config.trainer, _evaluation_split_tokens(config, max_length)
    bounds = [split if known is None else known]
    if trainer.eval_max_batches is not None:
        bounds.append(trainer.eval_max_batches * trainer.per_device_eval_batch_size * max_length * fill)
    return min((bound for bound in bounds if bound is not None), default=None)


def _evaluation_split_tokens(config: RunConfig, max_length: int) -> float | None:
    samples = config.dataset.eval_samples
    if samples is None or config.dataset.eval_split is not None:
        return None
    return samples * segment_tokens(config, max_length, is_packed=True)
