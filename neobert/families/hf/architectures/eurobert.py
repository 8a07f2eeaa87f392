"""EuroBERT: the blocks of a Llama, which attend in both directions."""

from __future__ import annotations

from dataclasses import replace

from neobert.families.hf.architecture import MASKED, TEXTS, TOKENS, Architecture, HeadPath
from neobert.families.hf.pre_norm import Sizes, attention_of, biased_layers, gated_shape, read_sizes
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape

DEFAULT = Sizes(hidden=768, layers=12, heads=12, kv_heads=12, head_size=0, width=3072)


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a EuroBERT."""
    sizes = read_sizes(settings, DEFAULT)
    return gated_shape(
        settings,
        sizes,
        replace(attention_of(sizes), direction="bidirectional"),
        architecture="eurobert",
        vocab_size=vocab_size,
        max_positions=positions,
        biased=biased_layers(settings),
        decoder_bias=vocab_size if settings.flag("mlp_bias", False) else 0,
    )


EUROBERT = Architecture(
    shape=shape,
    prefix="model.",
    blocks="layers",
    embedding="embed_tokens",
    heads={
        MASKED: HeadPath("lm_head"),
        TEXTS: HeadPath("classifier", ("dense", "activation", "dropout")),
        TOKENS: HeadPath("classifier", ("dropout",)),
    },
    attention_dropout=("attention_dropout", 0.0),
    poolings={"avg": "mean", "cls": "bos"},
)
