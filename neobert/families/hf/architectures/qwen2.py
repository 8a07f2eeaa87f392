"""Qwen2 and Qwen2.5: the blocks of a Llama, with biases of queries, keys and values."""

from __future__ import annotations

from neobert.families.attention import Window
from neobert.families.hf.blocks import (
    QUERIES_KEYS_VALUES,
    Blocks,
    Sizes,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks, of which the last may have windows."""
    attention = causal_attention(sizes, window=late_window(settings, sizes.layers))
    return Blocks(attention, gated_layers(sizes), QUERIES_KEYS_VALUES)


def late_window(settings: Settings, layers: int) -> Window | None:
    """Return the window of the blocks from `max_window_layers` on, if `use_sliding_window` is true."""
    if not settings.flag("use_sliding_window", False):
        return None
    late = range(settings.size("max_window_layers", 28, least=0), layers)
    return causal_window(settings, sliding_layers(settings, layers, late), 4096)


QWEN2 = model_of_blocks("qwen2", Sizes(4096, 32, 32, 32, 0, 22_016), describe)
