"""SmolLM3: the blocks of a Llama, every fourth without positions."""

from __future__ import annotations

from neobert.families.attention import Window
from neobert.families.hf.architectures import llama
from neobert.families.hf.blocks import Blocks, Sizes, causal_attention, model_of_blocks
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window, sliding_layers


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of SmolLM3; the blocks without positions may have windows.

    Raises `ProjectError` MOD006 for an invalid list of these blocks.
    """
    attention = causal_attention(sizes, window=_sliding_window(settings, sizes.layers))
    return llama.describe(settings, sizes)._replace(attention=attention, is_tied=True)


def _sliding_window(settings: Settings, layers: int) -> Window | None:
    """Return the window of the blocks without positions, or None unless `use_sliding_window` is true.

    Raises `ProjectError` MOD006 unless `no_rope_layers` has a value for each block.
    """
    if not settings.flag("use_sliding_window", False):
        return None
    every = settings.size("no_rope_layer_interval", 4)
    has_rope = settings.values.get("no_rope_layers") or [(number + 1) % every for number in range(layers)]
    if not isinstance(has_rope, list) or len(has_rope) < layers:
        raise settings.invalid_value_error(
            "no_rope_layers", f"a list of {layers} values, 0 without positions"
        )
    without = (number for number in range(layers) if not has_rope[number])
    return causal_window(settings, sliding_layers(settings, layers, without), None)


SMOLLM3 = model_of_blocks("smollm3", Sizes(2048, 36, 16, 4, 0, 11_008), describe)
