"""Text models of Gemma 3: windows in five of six blocks, norms of queries and keys."""

from __future__ import annotations

from neobert.families.hf.architectures import gemma
from neobert.families.hf.architectures.gemma2 import HEADS
from neobert.families.hf.blocks import Blocks, Sizes, Stored, model_of_blocks, own_scale
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks."""
    every = settings.size("sliding_window_pattern", settings.size("_sliding_window_pattern", 6))
    local = (number for number in range(sizes.layers) if (number + 1) % every)
    blocks = gemma.describe(
        settings,
        sizes,
        window=causal_window(settings, sliding_layers(settings, sizes.layers, local), 4096),
        scale=own_scale(sizes, settings.size("query_pre_attn_scalar", 256) ** -0.5),
    )
    stored = Stored(wide_hidden=11, wide_queries=2, wide_keys=2)
    return blocks._replace(norms=4, of_heads=2 * sizes.head_size, stored=stored)


GEMMA3 = model_of_blocks("gemma3_text", Sizes(2304, 26, 8, 4, 256, 9216), describe, heads=HEADS)
