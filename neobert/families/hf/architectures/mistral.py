"""Mistral: the blocks of a Llama, all with a sliding window."""

from __future__ import annotations

from neobert.families.hf.blocks import Blocks, Sizes, causal_attention, gated_layers, model_of_blocks
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Mistral; a null `sliding_window` disables the window."""
    window = causal_window(settings, range(sizes.layers), 4096)
    return Blocks(causal_attention(sizes, window=window), gated_layers(sizes))


MISTRAL = model_of_blocks("mistral", Sizes(4096, 32, 32, 8, 0, 14_336), describe)
