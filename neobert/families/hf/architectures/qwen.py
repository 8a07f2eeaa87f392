"""Qwen2, Qwen2.5 and Qwen3: Llama blocks; the last ones may have windows."""

from __future__ import annotations

from neobert.families.attention import AttentionSpec
from neobert.families.hf.blocks import (
    ATTENTION,
    QUERIES_KEYS_VALUES,
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe_qwen2(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Qwen2, with biases of queries, keys and values."""
    return Blocks(_attention_spec(settings, sizes), gated_layers(sizes), QUERIES_KEYS_VALUES)


def describe_qwen3(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Qwen3, with norms of queries and keys."""
    return Blocks(
        _attention_spec(settings, sizes),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        head_norm_values=2 * sizes.head_size,
        stored=StoredVectors(queries=5, keys=1, wide_queries=1, wide_keys=1),
    )


def _attention_spec(settings: Settings, sizes: Sizes) -> AttentionSpec:
    """Return the attention, with windows from `max_window_layers` on if `use_sliding_window` is true."""
    if not settings.flag("use_sliding_window", False):
        return causal_attention(sizes)
    late = range(settings.size("max_window_layers", 28, least=0), sizes.layers)
    sliding = sliding_layers(settings, sizes.layers, late)
    return causal_attention(sizes, window=causal_window(settings, sliding, 4096))


QWEN2 = model_of_blocks("qwen2", Sizes(4096, 32, 32, 32, 0, 22_016), describe_qwen2)
QWEN3 = model_of_blocks("qwen3", Sizes(4096, 32, 32, 32, 128, 22_016), describe_qwen3)
