"""Qwen3: the blocks of a Llama, with norms of queries and keys."""

from __future__ import annotations

from neobert.families.hf.architectures.qwen2 import late_window
from neobert.families.hf.blocks import (
    ATTENTION,
    Blocks,
    Sizes,
    Stored,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks, of which the last may have windows."""
    return Blocks(
        causal_attention(sizes, window=late_window(settings, sizes.layers)),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        of_heads=2 * sizes.head_size,
        stored=Stored(queries=5, keys=1, wide_queries=1, wide_keys=1),
    )


QWEN3 = model_of_blocks("qwen3", Sizes(4096, 32, 32, 32, 128, 22_016), describe)
