"""Phi-3: the blocks of a Llama with one layer for queries, keys and values, and one for gate and up."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    joined_gate_layers,
    model_of_blocks,
    output_layer,
    stacked_attention,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window

STORED = StoredVectors(hidden=2, queries=5, wide_hidden=4)


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Phi-3, with windows only if `sliding_window` is set."""
    window = causal_window(settings, range(sizes.layers), None)
    attention = stacked_attention(sizes, "self_attn.qkv_proj") | output_layer(sizes, "self_attn.o_proj")
    return Blocks(
        causal_attention(sizes, window=window), attention | joined_gate_layers(sizes), stored=STORED
    )


PHI3 = model_of_blocks("phi3", Sizes(3072, 32, 32, 32, 0, 8192), describe, dropout=("resid_pdrop", 0.0))
