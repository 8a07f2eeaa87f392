"""Size of the model and its batches, and FLOPs per token.

Shapes: D hidden size, T tokens.
"""

from __future__ import annotations

from neobert.config.schedules import microbatches_before
from neobert.config.schema import RunConfig, TrainerConfig
from neobert.families.shape import ModelShape
from neobert.families.table import max_row_length
from neobert.plan.derived import Derived, Values
from neobert.plan.hardware import Assumptions
from neobert.plurals import counted
from neobert.precision.table import run_recipe
from neobert.tasks.specs import spec_of

PACKED_FILL = 0.99
MEAN_DOCUMENT_TOKENS = 217
RIDGE_FACTOR = 4 / 3


def plan_size(shape: ModelShape, assumptions: Assumptions) -> Values:
    """Derive the parameter counts, and the hidden size below which matrix products are memory-bound."""
    counts = shape.parameters
    ratio = assumptions.peak_flops_per_device / assumptions.hbm_bytes_per_s
    return {
        "num_parameters": Derived(
            counts.total,
            f"{shape.num_layers} blocks of width {shape.hidden_size}: {counts.linear:,} in matrices, "
            f"{counts.vectors:,} in norms and biases, {counts.embeddings:,} in the embedding, "
            f"{counts.decoder:,} in the decoder{_describe_trained_parameters(shape)}",
        ),
        "num_linear_parameters": Derived(counts.linear, "the blocks' matrices"),
        "embedding_multiplier": Derived(
            shape.embedding_multiplier,
            "model.embedding_multiplier; null: from the weights, else sqrt(width)",
        ),
        "min_hidden_size": Derived(
            ridge_width(assumptions),
            f"4/3 x peak / bandwidth = 4/3 x {ratio:.0f} FLOP per byte on {assumptions.device_name}: "
            "narrower products are memory-bound",
        ),
    }


def _describe_trained_parameters(shape: ModelShape) -> str:
    if not shape.adapter_parameters:
        return ""
    head = ", and the head" if shape.trains_head else ""
    return f"; {shape.trained_parameters.total:,} are trained: {shape.adapter_parameters:,} in adapters{head}"


def num_processes(config: RunConfig) -> int:
    """Return the world size of a run: nproc_per_node x nnodes."""
    return config.distributed.nproc_per_node * config.distributed.nnodes


def plan_batch(config: RunConfig, shape: ModelShape) -> Values:
    """Derive world size, row length, rows and tokens per step, and tokens of the whole run."""
    trainer, distributed = config.trainer, config.distributed
    rows, accumulation = trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps
    world, length = num_processes(config), max_row_length(config)
    fill = microbatch_fill(config, length)
    tokens_per_step = rows * length * accumulation * world
    per_rank = microbatches_before(trainer.max_steps, trainer)
    total = round(rows * length * world * per_rank * fill.value)
    spread = f"{counted(accumulation, 'microbatch', 'microbatches')} x {counted(world, 'rank')}"
    nodes, steps = counted(distributed.nnodes, "node"), _format_full_batch_steps(trainer)
    return {
        "world_size": Derived(world, f"{distributed.nproc_per_node} per node x {nodes}"),
        "max_length": Derived(length, "datacollator.max_length, else dataset.max_seq_length"),
        "tokens_per_microbatch": Derived(rows * length, f"{rows} rows x {length} tokens"),
        "tokens_per_step": Derived(tokens_per_step, f"{rows} rows x {length} tokens x {spread}"),
        "global_batch_size": Derived(rows * accumulation * world, f"{rows} rows x {spread}"),
        "fill": fill,
        "total_tokens": Derived(
            total,
            f"{tokens_per_step:,} tokens per step x {steps} x fill {fill.value:.2f}",
        ),
        "tokens_per_parameter": Derived(
            total / shape.parameters.total, f"{total:,} tokens / {shape.parameters.total:,} parameters"
        ),
    }


def _format_full_batch_steps(trainer: TrainerConfig) -> str:
    """Format the run's number of steps, converted to steps of the full batch size."""
    if trainer.batch_size_warmup_steps == 0:
        return f"{trainer.max_steps:,} steps"
    whole = microbatches_before(trainer.max_steps, trainer) / trainer.gradient_accumulation_steps
    return f"{whole:,.6g} steps ({trainer.max_steps:,}, less the batch-size warm-up)"


def microbatch_fill(config: RunConfig, length: int) -> Derived[float]:
    """Derive the share of the positions of a microbatch that hold text."""
    if config.datacollator.pack_sequences:
        return Derived(PACKED_FILL, "assumed share of a packed microbatch that is text")
    document = segment_tokens(config, length, is_packed=True)
    return Derived(document / length, f"documents of about {document} tokens, padded to {length}")


def segment_tokens(config: RunConfig, max_length: int, *, is_packed: bool) -> int:
    """Return the number of tokens that a token attends to: the padded row, or the assumed mean document."""
    if not is_packed:
        return max_length
    return min(max(MEAN_DOCUMENT_TOKENS, config.dataset.min_length), max_length)


def flops_per_token(config: RunConfig, shape: ModelShape, segment: int) -> float:
    """Return the FLOPs per token of all trained passes, with attention over `segment` tokens."""
    task = spec_of(config)
    head = task.head(config, shape)
    scored = shape.head_flops * head.weights * head.num_scored(1, segment)
    return task.passes(config).trained * encoder_flops_per_token(shape, segment) + scored


def encoder_flops_per_token(shape: ModelShape, segment: int) -> float:
    """Return the FLOPs per token of an encoder pass and its backward, over segments of `segment` tokens."""
    return shape.product_flops + shape.attention_flops([segment]) / segment


def ridge_width(assumptions: Assumptions) -> float:
    """Return the hidden size D at which the qkv product changes from memory-bound to compute-bound.

    [T, D] times [D, 3D] has 6 T D^2 FLOPs and moves 8 T D bytes in bf16: 0.75 D FLOPs per byte. At the ridge,
    this equals peak FLOP/s / bandwidth.
    """
    return RIDGE_FACTOR * assumptions.peak_flops_per_device / assumptions.hbm_bytes_per_s


def attainable_flops(config: RunConfig, shape: ModelShape, assumptions: Assumptions) -> float:
    """Return the peak FLOP/s at the run's precision, scaled down if hidden_size is below the ridge width."""
    narrowness = min(1.0, shape.hidden_size / ridge_width(assumptions))
    return peak_at_precision(config, assumptions) * narrowness


def peak_at_precision(config: RunConfig, assumptions: Assumptions) -> float:
    """Return the dense peak FLOP/s of a device at the run's precision (bf16, TF32 or fp32)."""
    if not run_recipe(config).is_fp32:
        return assumptions.peak_flops_per_device
    return assumptions.tf32_flops_per_device if config.trainer.tf32 else assumptions.fp32_flops_per_device
