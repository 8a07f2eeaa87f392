"""StarCoder2: pre-norm blocks with biases and without a gate, rotary positions, perhaps windows."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    model_of_blocks,
    separate_attention,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import causal_window
from neobert.families.linear import Linear


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of StarCoder2. A norm has a scale and a shift."""
    linear = separate_attention(sizes) | {
        "mlp.c_fc": Linear(sizes.hidden, sizes.width),
        "mlp.c_proj": Linear(sizes.width, sizes.hidden),
    }
    window = causal_window(settings, range(sizes.layers), None)
    return Blocks(
        causal_attention(sizes, window=window),
        linear,
        linear if settings.flag("use_bias", True) else (),
        norms=4,
        last_norm=2,
        is_tied=True,
        initial_rms=0.018042,
        stored=StoredVectors(width=2, hidden=0, wide_hidden=4),
    )


STARCODER2 = model_of_blocks(
    "starcoder2",
    Sizes(3072, 30, 24, 2, 0, 12_288),
    describe,
    dropout=("residual_dropout", 0.0),
    embedding_dropout="embedding_dropout",
)
