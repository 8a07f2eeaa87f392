"""GLM-4: the blocks of a Llama with norms after each part, one layer for gate and up, few heads of keys."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    QUERIES_KEYS_VALUES,
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    joined_gate_layers,
    model_of_blocks,
    separate_attention,
)
from neobert.families.hf.settings import Settings

STORED = StoredVectors(hidden=2, queries=5, wide_hidden=8)


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of GLM-4, with biases of queries, keys and values by default."""
    biased = QUERIES_KEYS_VALUES * settings.flag("attention_bias", True)
    return Blocks(
        causal_attention(sizes),
        separate_attention(sizes) | joined_gate_layers(sizes),
        biased,
        norms=4,
        stored=STORED,
    )


GLM4 = model_of_blocks(
    "glm4",
    Sizes(4096, 40, 32, 2, 128, 13_696),
    describe,
    added_norms=("post_self_attn_layernorm", "post_mlp_layernorm"),
)
