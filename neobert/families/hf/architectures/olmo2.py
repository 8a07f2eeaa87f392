"""OLMo 2: the layers of a Llama, with norms after attention and feed-forward, and of queries and keys."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    ATTENTION,
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of OLMo 2, which normalize queries and keys over all heads at once."""
    return Blocks(
        causal_attention(sizes),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        head_norm_values=(sizes.heads + sizes.kv_heads) * sizes.head_size,
        stored=StoredVectors(wide_queries=2, wide_keys=2),
    )


OLMO2 = model_of_blocks("olmo2", Sizes(4096, 32, 32, 32, 0, 11_008), describe)
