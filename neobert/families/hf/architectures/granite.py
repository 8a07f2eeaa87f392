"""Granite: the blocks of a Llama, with factors on embeddings, scores, residuals and logits."""

from __future__ import annotations

from neobert.families.hf.architecture import CAUSAL, HeadPath
from neobert.families.hf.architectures import llama
from neobert.families.hf.blocks import Blocks, Sizes, causal_attention, custom_scale, model_of_blocks
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Granite, with factors on scores and embeddings."""
    scale = custom_scale(sizes, settings.number("attention_multiplier", 1.0))
    return llama.describe(settings, sizes)._replace(
        attention=causal_attention(sizes, scale=scale),
        embedding_multiplier=settings.number("embedding_multiplier", 1.0),
    )


GRANITE = model_of_blocks(
    "granite",
    Sizes(4096, 32, 32, 32, 0, 11_008),
    describe,
    heads={CAUSAL: HeadPath("lm_head", ("/logits_scaling",))},
)
