"""Gemma: the blocks of a Llama with heads of their own size, after scaled embeddings."""

from __future__ import annotations

from typing import Any

from neobert.families.hf.blocks import (
    ATTENTION,
    Blocks,
    Sizes,
    causal_attention,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes, **attention: Any) -> Blocks:
    """Describe the blocks; `attention` as in `AttentionSpec`."""
    if settings.flag("use_bidirectional_attention", False):
        raise settings.wrong("use_bidirectional_attention", "false: only causal ones are supported")
    return Blocks(
        causal_attention(sizes, **attention),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        is_tied=True,
        embedding_multiplier=sizes.hidden**0.5,
    )


GEMMA = model_of_blocks("gemma", Sizes(3072, 28, 16, 16, 256, 24_576), describe)
