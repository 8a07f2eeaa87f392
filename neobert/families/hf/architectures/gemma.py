"""Gemma 1 to 3: the blocks of a Llama with heads of their own size, after scaled embeddings.

Gemma 2 and 3 have windows in most blocks, and norms after each part too. Of Gemma 3, this is the text model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neobert.families.hf.architecture import CAUSAL, HeadPath
from neobert.families.hf.blocks import (
    ATTENTION,
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    custom_scale,
    gated_layers,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe(settings: Settings, sizes: Sizes, **attention: Any) -> Blocks:
    """Describe the blocks of Gemma; `attention` are fields of `AttentionSpec`.

    Raises `ProjectError` MOD006 for bidirectional attention.
    """
    if settings.flag("use_bidirectional_attention", False):
        raise settings.invalid_value_error(
            "use_bidirectional_attention", "false: only causal attention is supported"
        )
    return Blocks(
        causal_attention(sizes, **attention),
        gated_layers(sizes),
        ATTENTION * settings.flag("attention_bias", False),
        is_tied=True,
        embedding_multiplier=sizes.hidden**0.5,
    )


def describe_gemma2(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Gemma 2: a window in every second layer, soft caps on scores and logits."""
    softcap = settings.number_or_none("attn_logit_softcapping", 50.0)
    blocks = _with_windows(settings, sizes, range(0, sizes.layers, 2), softcap=softcap)
    return blocks._replace(stored=StoredVectors(wide_hidden=11))


def describe_gemma3(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of Gemma 3: a window in five of six layers, norms of queries and keys."""
    every = settings.size("sliding_window_pattern", settings.size("_sliding_window_pattern", 6))
    blocks = _with_windows(settings, sizes, (each for each in range(sizes.layers) if (each + 1) % every))
    stored = StoredVectors(wide_hidden=11, wide_queries=2, wide_keys=2)
    return blocks._replace(head_norm_values=2 * sizes.head_size, stored=stored)


def _with_windows(settings: Settings, sizes: Sizes, local: Iterable[int], **attention: Any) -> Blocks:
    """Describe blocks with norms after each part too; blocks in `local` have windows by default."""
    window = causal_window(settings, sliding_layers(settings, sizes.layers, local), 4096)
    scale = custom_scale(sizes, settings.size("query_pre_attn_scalar", 256) ** -0.5)
    return describe(settings, sizes, window=window, scale=scale, **attention)._replace(norms=4)


HEADS = {CAUSAL: HeadPath("lm_head", softcap="final_logit_softcapping")}
SIZES = Sizes(2304, 26, 8, 4, 256, 9216)
GEMMA = model_of_blocks("gemma", Sizes(3072, 28, 16, 16, 256, 24_576), describe)
GEMMA2 = model_of_blocks("gemma2", SIZES, describe_gemma2, heads=HEADS, has_sdpa=False)
GEMMA3 = model_of_blocks("gemma3_text", SIZES, describe_gemma3, heads=HEADS)
