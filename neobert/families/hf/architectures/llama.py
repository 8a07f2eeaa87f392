"""Llama: pre-norm gated blocks, rotary positions, grouped heads."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    Blocks,
    Sizes,
    biased_layers,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of a Llama, whose linear layers may have biases."""
    return Blocks(causal_attention(sizes), gated_layers(sizes), biased_layers(settings))


LLAMA = model_of_blocks("llama", Sizes(4096, 32, 32, 32, 0, 11_008), describe)
