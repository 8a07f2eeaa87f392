"""EuroBERT: pre-norm gated blocks, rotary positions, fewer heads of keys and values than of queries."""

from __future__ import annotations

from neobert.families.attention import AttentionSpec
from neobert.families.hf.architecture import (
    MASKED,
    TEXTS,
    TOKENS,
    Architecture,
    HeadPath,
    attention_layers,
    kept,
)
from neobert.families.hf.settings import Settings
from neobert.families.linear import Linear
from neobert.families.shape import ModelShape, ParameterCount

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a EuroBERT."""
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 12)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 3072)
    kv_heads = settings.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise settings.wrong("num_key_value_heads", f"a divisor of the {heads} heads")
    head_size = settings.size("head_dim", hidden // heads)
    attention = AttentionSpec(heads=heads, kv_heads=kv_heads, head_size=head_size)
    attention_biases = (heads + 2 * kv_heads) * head_size + hidden
    biases = (settings.flag("attention_bias", False) and attention_biases) + (
        settings.flag("mlp_bias", False) and 2 * width + hidden
    )
    own_decoder = 0 if settings.flag("tie_word_embeddings", False) else vocab_size * hidden
    decoder_bias = vocab_size if settings.flag("mlp_bias", False) else 0
    queries = heads * head_size
    return ModelShape(
        architecture="eurobert",
        hidden_size=hidden,
        num_layers=layers,
        attention_width=queries,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="rotary",
        max_positions=positions,
        linear_layers=attention_layers(ATTENTION, hidden, heads, kv_heads, head_size)
        | {
            "mlp.gate_proj": Linear(hidden, width),
            "mlp.up_proj": Linear(hidden, width),
            "mlp.down_proj": Linear(width, hidden),
        },
        parameters=ParameterCount(
            linear=layers * (attention.weights(hidden) + 3 * hidden * width),
            vectors=layers * (2 * hidden + biases) + hidden,
            embeddings=vocab_size * hidden,
            decoder=own_decoder + decoder_bias,
        ),
        decoder_products=hidden * vocab_size,
        initial_rms=settings.number("initializer_range", 0.02),
        # Keys and values are repeated for all heads, and norms and rotations are in fp32.
        kept=kept(settings, heads, 4 * queries + 4 * width - hidden, 7 * hidden),
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
