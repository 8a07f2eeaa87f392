"""Weights and gradients that one rank holds in a step, replicated or sharded (FSDP2)."""

from __future__ import annotations

from typing import NamedTuple

from neobert.config.schema import RunConfig
from neobert.families.shape import BF16_BYTES, FP32_BYTES, ModelShape
from neobert.plan.kernels import exchange_overlaps
from neobert.plan.size import num_processes
from neobert.precision.recipe import Recipe
from neobert.precision.table import run_recipe

BLOCKS_AT_ONCE = 3
"""Gathered blocks of a rank that frees them: the current one, the next, and the buffer of a message."""


class StateBytes(NamedTuple):
    """Bytes of weights with their gathered and converted copies, and of gradients.

    Attributes:
        exchange: gradients of one block and their messages, during the backward pass.
        last_exchange: gradients and messages of embeddings and head, after activations and weights are freed.
    """

    weights: float
    gradients: float
    exchange: float = 0.0
    last_exchange: float = 0.0


def kept_share(config: RunConfig) -> float:
    """Return the share of weights, gradients and optimizer state that a rank stores between steps."""
    sharing = config.distributed
    return min(1.0, sharing.replicas / num_processes(config)) if sharing.mode == "fsdp2" else 1.0


def gathers_copies(recipe: Recipe, shape: ModelShape) -> bool:
    """Return whether ranks gather block matrices in the compute dtype instead of fp32.

    It is true only for decoders, whose residual stream has that dtype; the NeoBERT kernels read fp32 weights.
    """
    return recipe.gathered_dtype is not None and not shape.has_fp32_stream


def state_bytes(config: RunConfig, shape: ModelShape, kernels: str, *, reshards: bool) -> StateBytes:
    """Return the bytes of weights and gradients on one rank, in a step.

    Blocks that are gathered in the compute dtype need no converted copies. Copies of other blocks are kept
    for the backward pass, even if the gathered weights are freed.
    """
    recipe, share = run_recipe(config), kept_share(config)
    counts, trained = shape.parameters, shape.trained_parameters.total
    blocks = counts.linear + counts.vectors + shape.adapter_parameters
    ends = counts.embeddings + counts.decoder
    copy = recipe.weight_copy_bytes
    if share == 1:
        return StateBytes((blocks + ends) * (FP32_BYTES + copy), trained * FP32_BYTES)
    overlaps = exchange_overlaps(kernels)
    is_low = overlaps and gathers_copies(recipe, shape)
    gathered, copied = (BF16_BYTES, 0) if is_low else (FP32_BYTES, copy)
    frees = reshards and overlaps
    held = blocks * min(1.0, BLOCKS_AT_ONCE / shape.num_layers) if frees else blocks
    weights = (blocks + ends) * FP32_BYTES * share
    weights += held * gathered + blocks * copied + ends * (FP32_BYTES + copy)
    if not frees and not (overlaps and config.trainer.gradient_accumulation_steps == 1):
        return StateBytes(weights, trained * FP32_BYTES)
    # A gradient, the message in fp32 that is sent, and the one before it.
    exchange = min(blocks, trained) / shape.num_layers * (gathered + 2 * FP32_BYTES)
    # Those of embeddings and head: their gathered weights are freed before the message is made.
    last = 0 if shape.adapter_parameters else ends * FP32_BYTES
    return StateBytes(weights, trained * FP32_BYTES * share, exchange, last)
