"""Gemma 2: windows in every second block, soft caps on scores and logits, norms after each part too."""

from __future__ import annotations

from neobert.families.hf.architecture import CAUSAL, HeadPath
from neobert.families.hf.architectures import gemma
from neobert.families.hf.blocks import Blocks, Sizes, Stored, model_of_blocks, own_scale
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks."""
    sliding = sliding_layers(settings, sizes.layers, range(0, sizes.layers, 2))
    blocks = gemma.describe(
        settings,
        sizes,
        window=causal_window(settings, sliding, 4096),
        scale=own_scale(sizes, settings.size("query_pre_attn_scalar", 256) ** -0.5),
        softcap=settings.number_or_none("attn_logit_softcapping", 50.0),
    )
    return blocks._replace(norms=4, stored=Stored(wide_hidden=11))


HEADS = {CAUSAL: HeadPath("lm_head", softcap="final_logit_softcapping")}
GEMMA2 = model_of_blocks("gemma2", Sizes(2304, 26, 8, 4, 256, 9216), describe, heads=HEADS, has_sdpa=False)
