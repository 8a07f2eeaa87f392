"""Qwen2 and Qwen2.5: the blocks of a Llama, with biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from neobert.families.attention import Window
from neobert.families.hf.architectures.llama import LLAMA
from neobert.families.hf.pre_norm import QUERIES_KEYS_VALUES, Sizes, attention_of, gated_shape, read_sizes
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers
from neobert.families.shape import ModelShape

DEFAULT = Sizes(hidden=4096, layers=32, heads=32, kv_heads=32, head_size=0, width=22_016)


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a Qwen2, whose last blocks may have windows."""
    sizes = read_sizes(settings, DEFAULT)
    return gated_shape(
        settings,
        sizes,
        replace(attention_of(sizes), window=late_window(settings, sizes.layers)),
        architecture="qwen2",
        vocab_size=vocab_size,
        max_positions=positions,
        biased=QUERIES_KEYS_VALUES,
    )


def late_window(settings: Settings, layers: int) -> Window | None:
    """Return the window of the blocks from `max_window_layers` on, if `use_sliding_window` is true."""
    if not settings.flag("use_sliding_window", False):
        return None
    late = range(settings.size("max_window_layers", 28, least=0), layers)
    return causal_window(settings, sliding_layers(settings, layers, late), 4096)


QWEN2 = LLAMA._replace(shape=shape)
