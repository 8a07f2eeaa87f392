"""FLOPs of Muon's orthogonalization, which a step needs once, whatever its number of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape


def orthogonalization_flops(config: RunConfig, shape: ModelShape) -> float:
    """Return the FLOPs of the Newton-Schulz iterations of a step, all of which every rank computes.

    An iteration on R rows and C columns, R <= C, has two products of R x R x C and one of R x R x R.
    """
    if not OPTIMIZERS[config.optimizer.name].matrices_by_muon:
        return 0.0
    each = sum(4 * rows**2 * columns + 2 * rows**3 for rows, columns in _matrices(config, shape))
    return float(config.optimizer.muon_ns_steps * shape.num_layers * each)


def _matrices(config: RunConfig, shape: ModelShape) -> Iterator[tuple[int, int]]:
    """Yield the shorter and the longer side of each matrix of a block that is orthogonalized separately."""
    hidden, width, attention = shape.hidden_size, shape.feed_forward_width, shape.attention
    size, is_split = attention.head_size, config.optimizer.muon_split == "heads"
    for heads in (attention.heads, attention.kv_heads, attention.kv_heads):
        rows = size if is_split else heads * size
        yield from [(min(rows, hidden), max(rows, hidden))] * (heads if is_split else 1)
    yield min(attention.heads * size, hidden), max(attention.heads * size, hidden)
    matrices = shape.parameters.linear // shape.num_layers - attention.weights(hidden)
    yield from [(min(hidden, width), max(hidden, width))] * (matrices // (hidden * width))
