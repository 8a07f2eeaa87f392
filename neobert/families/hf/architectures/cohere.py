"""Cohere: the layers of a Llama, attention and feed-forward side by side, scaled logits."""

from __future__ import annotations

from neobert.families.hf.architecture import CAUSAL, HeadPath
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
    """Describe the blocks of Cohere, which may have norms of queries and keys."""
    has_norms = settings.flag("use_qk_norm", False)
    return Blocks(
        causal_attention(sizes),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        norms=1,
        head_norm_values=has_norms * (sizes.heads + sizes.kv_heads) * sizes.head_size,
        is_tied=True,
        stored=StoredVectors(hidden=-3, wide_queries=3 * has_norms, wide_keys=3 * has_norms),
    )


COHERE = model_of_blocks(
    "cohere",
    Sizes(8192, 40, 64, 64, 0, 22_528),
    describe,
    heads={CAUSAL: HeadPath("lm_head", ("*logit_scale",))},
)
