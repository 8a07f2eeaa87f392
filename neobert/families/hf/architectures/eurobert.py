"""EuroBERT: the blocks of a Llama, which attend in both directions."""

from __future__ import annotations

from dataclasses import replace

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, HeadPath
from neobert.families.hf.architectures import llama
from neobert.families.hf.blocks import Blocks, Sizes, model_of_blocks
from neobert.families.hf.settings import Settings


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of EuroBERT; `mlp_bias` adds a bias to the decoder too."""
    blocks = llama.describe(settings, sizes)
    attention = replace(blocks.attention, direction="bidirectional")
    return blocks._replace(attention=attention, has_decoder_bias=settings.flag("mlp_bias", False))


EUROBERT = model_of_blocks(
    "eurobert",
    Sizes(768, 12, 12, 12, 0, 3072),
    describe,
    heads={
        MASKED: HeadPath("lm_head"),
        TEXTS: HeadPath("classifier", ("dense", "activation", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    poolings={"avg": "mean", "cls": "bos"},
)
