"""Llama: pre-norm gated blocks, rotary positions, grouped heads."""

from __future__ import annotations

from neobert.families.hf.architecture import CAUSAL, Architecture, HeadPath
from neobert.families.hf.pre_norm import Sizes, attention_of, biased_layers, gated_shape, read_sizes
from neobert.families.hf.settings import Settings
from neobert.families.shape import ModelShape

DEFAULT = Sizes(hidden=4096, layers=32, heads=32, kv_heads=32, head_size=0, width=11_008)


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a Llama."""
    sizes = read_sizes(settings, DEFAULT)
    return gated_shape(
        settings,
        sizes,
        attention_of(sizes),
        architecture="llama",
        vocab_size=vocab_size,
        max_positions=positions,
        biased=biased_layers(settings),
    )


LLAMA = Architecture(
    shape=shape,
    prefix="model.",
    blocks="layers",
    embedding="embed_tokens",
    heads={CAUSAL: HeadPath("lm_head")},
    attention_dropout=("attention_dropout", 0.0),
    poolings={},
)
