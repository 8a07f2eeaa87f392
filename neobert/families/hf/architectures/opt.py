"""OPT: pre-norm blocks with biases and without a gate, learned positions after two rows without use."""

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
from neobert.families.linear import Linear

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")


def describe(settings: Settings, sizes: Sizes) -> Blocks:
    """Describe the blocks of OPT. A norm has a scale and a shift.

    Raises `ProjectError` MOD006 for dropped layers, and for embeddings of another width than the blocks.
    """
    if settings.number("layerdrop", 0.0):
        raise settings.invalid_value_error("layerdrop", "0: a block that is left out would get no gradient")
    if settings.size("word_embed_proj_dim", sizes.hidden) != sizes.hidden:
        raise settings.invalid_value_error("word_embed_proj_dim", f"{sizes.hidden}, the hidden size")
    linear = separate_attention(sizes, ATTENTION) | {
        "fc1": Linear(sizes.hidden, sizes.width),
        "fc2": Linear(sizes.width, sizes.hidden),
    }
    vectors = 2 * settings.flag("layer_norm_elementwise_affine", True)
    has_last = settings.flag("do_layer_norm_before", True) and not settings.flag(
        "_remove_final_layer_norm", False
    )
    return Blocks(
        # The model scales its queries itself.
        causal_attention(sizes, scale=1.0),
        linear,
        linear if settings.flag("enable_bias", True) else (),
        norms=2 * vectors,
        last_norm=vectors * has_last,
        unused_positions=2,
        is_tied=True,
        stored=StoredVectors(width=1, hidden=6, queries=0, wide_hidden=4),
    )


OPT = model_of_blocks(
    "opt",
    Sizes(768, 12, 12, 12, 0, 3072),
    describe,
    names={"intermediate_size": "ffn_dim", "initializer_range": "init_std"},
    blocks="decoder.layers",
    embedding="decoder.embed_tokens",
    dropout=("dropout", 0.1),
)
