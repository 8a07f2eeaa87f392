"""GPT-2: pre-norm blocks with biases and transposed weights, learned positions."""

from __future__ import annotations

from neobert.families.hf.blocks import (
    Blocks,
    Sizes,
    StoredVectors,
    causal_attention,
    custom_scale,
    model_of_blocks,
)
from neobert.families.hf.settings import Settings
from neobert.families.linear import Linear

NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}

STORED = StoredVectors(width=5, hidden=10, queries=0, wide_hidden=2)


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of GPT-2. A norm has a scale and a shift.

    Raises `ProjectError` MOD006 for cross-attention, and for scores scaled by the number of the block.
    """
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if settings.flag(name, False):
            raise settings.invalid_value_error(name, "false: all blocks must have the same attention")
    hidden, width = sizes.hidden, sizes.width
    linear = {
        "attn.c_attn": Linear(hidden, 3 * hidden),
        "attn.c_proj": Linear(hidden, hidden),
        "mlp.c_fc": Linear(hidden, width),
        "mlp.c_proj": Linear(width, hidden),
    }
    scale = None if settings.flag("scale_attn_weights", True) else custom_scale(sizes, 1.0)
    attention = causal_attention(sizes, scale=scale)
    return Blocks(
        attention,
        linear,
        linear,
        norms=4,
        last_norm=2,
        unused_positions=0,
        is_tied=True,
        stored=STORED,
        is_transposed=True,
    )


GPT2 = model_of_blocks(
    "gpt2",
    Sizes(768, 12, 12, 12, 0, 0),
    describe,
    names=NAMES,
    prefix="transformer.",
    blocks="h",
    embedding="wte",
    positions="wpe",
    attention_dropout=("attn_pdrop", 0.1),
    dropout=("resid_pdrop", 0.1),
    embedding_dropout="embd_pdrop",
)
