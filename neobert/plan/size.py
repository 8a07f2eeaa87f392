"""Size of the model and its batches."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.plan.derived import Derived, Values
from neobert.plan.flops import ridge_width, segment_tokens
from neobert.plan.hardware import Assumptions
from neobert.plurals import counted

PACKED_FILL = 0.99


def plan_size(shape: ModelShape, assumptions: Assumptions) -> Values:
    """Derive the parameters, and the width below which their products are memory-bound."""
    counts = shape.parameters
    ratio = assumptions.peak_flops_per_device / assumptions.hbm_bytes_per_s
    return {
        "num_parameters": Derived(
            counts.total,
            f"{shape.num_layers} blocks of width {shape.hidden_size}: {counts.linear:,} in matrices, "
            f"{counts.vectors:,} in norms and biases, {counts.embeddings:,} embedding, "
            f"{counts.decoder:,} in the decoder",
        ),
        "num_linear_parameters": Derived(counts.linear, "the blocks' matrices"),
        "min_hidden_size": Derived(
            ridge_width(assumptions),
            f"4/3 x peak / bandwidth = 4/3 x {ratio:.0f} FLOP per byte on {assumptions.device_name}: "
            "narrower products wait for memory",
        ),
    }


def plan_batch(config: RunConfig, shape: ModelShape) -> Values:
    """Derive rows and tokens per step, and what the whole run reads."""
    trainer, distributed = config.trainer, config.distributed
    rows, accumulation = trainer.per_device_train_batch_size, trainer.gradient_accumulation_steps
    world = distributed.nproc_per_node * distributed.nnodes
    length = config.datacollator.max_length or config.dataset.max_seq_length
    fill = _fill(config, length)
    tokens_per_step = rows * length * accumulation * world
    total = round(tokens_per_step * trainer.max_steps * fill.value)
    spread = f"{counted(accumulation, 'microbatch', 'microbatches')} x {counted(world, 'rank')}"
    nodes = counted(distributed.nnodes, "node")
    return {
        "world_size": Derived(world, f"{distributed.nproc_per_node} per node x {nodes}"),
        "max_length": Derived(length, "datacollator.max_length, else dataset.max_seq_length"),
        "tokens_per_microbatch": Derived(rows * length, f"{rows} rows x {length} tokens"),
        "tokens_per_step": Derived(tokens_per_step, f"{rows} rows x {length} tokens x {spread}"),
        "global_batch_size": Derived(rows * accumulation * world, f"{rows} rows x {spread}"),
        "fill": fill,
        "total_tokens": Derived(
            total,
            f"{tokens_per_step:,} tokens per step x {trainer.max_steps:,} steps x fill {fill.value:.2f}",
        ),
        "tokens_per_parameter": Derived(
            total / shape.parameters.total, f"{total:,} tokens / {shape.parameters.total:,} parameters"
        ),
    }


def _fill(config: RunConfig, length: int) -> Derived[float]:
    if config.datacollator.pack_sequences:
        return Derived(PACKED_FILL, "share of a packed microbatch that is text")
    document = segment_tokens(config, length, is_packed=True)
    return Derived(document / length, f"documents of about {document} tokens, padded to {length}")
