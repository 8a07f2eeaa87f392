"""ModernBERT: pre-norm gated blocks, rotary positions, mostly sliding windows."""

from __future__ import annotations

from neobert.families.attention import AttentionSpec, Window
from neobert.families.hf.architecture import (
    MASKED,
    TEXTS,
    TOKENS,
    Architecture,
    HeadPath,
    measured_activations,
)
from neobert.families.hf.settings import Settings
from neobert.families.hf.windows import sliding_layers
from neobert.families.linear import GATE_UP, STACKED_QKV, Layout, Linear
from neobert.families.shape import ModelShape, ParameterCount


def shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Return the shape of a ModernBERT, whose local blocks attend within a window.

    Raises `ProjectError` MOD006 for an invalid setting.
    """
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 22)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 1152)
    is_tied = settings.flag("tie_word_embeddings", True)
    per_norm = 2 * hidden if settings.flag("norm_bias", False) else hidden
    attention_biases = 4 * hidden if settings.flag("attention_bias", False) else 0
    feed_forward_biases = 2 * width + hidden if settings.flag("mlp_bias", False) else 0
    head_bias = hidden if settings.flag("classifier_bias", False) else 0
    decoder_bias = vocab_size if settings.flag("decoder_bias", True) else 0
    window = _sliding_window(settings, layers)
    attention = AttentionSpec(heads=heads, kv_heads=heads, head_size=hidden // heads, window=window)
    has_dropout = settings.number("mlp_dropout", 0.0) > 0
    values = (6 if settings.is_eager else 8) * hidden + (4 + has_dropout) * width
    own_decoder = 0 if is_tied else vocab_size * hidden
    return ModelShape(
        architecture="modernbert",
        hidden_size=hidden,
        num_layers=layers,
        attention_width=hidden,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="rotary",
        max_positions=positions,
        linear_layers={
            "attn.Wqkv": Linear(hidden, 3 * hidden, Layout(STACKED_QKV, heads)),
            "attn.Wo": Linear(hidden, hidden),
            "mlp.Wi": Linear(hidden, 2 * width, Layout(GATE_UP)),
            "mlp.Wo": Linear(width, hidden),
        },
        parameters=ParameterCount(
            linear=layers * (attention.num_weights(hidden) + 3 * hidden * width),
            # Block 0 has no norm before attention; one follows the embedding and one the last block.
            vectors=layers * (2 * per_norm + attention_biases + feed_forward_biases) + per_norm,
            embeddings=vocab_size * hidden,
            decoder=hidden * hidden + head_bias + per_norm + decoder_bias + own_decoder,
        ),
        decoder_products=hidden * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=measured_activations(settings, heads, values, 2 * hidden),
    )


def _sliding_window(settings: Settings, layers: int) -> Window | None:
    """Return the window of the local blocks, or None; without `layer_types`, every n-th block is global."""
    every = settings.size("global_attn_every_n_layers", 3)
    sliding = sliding_layers(settings, layers, (number for number in range(layers) if number % every))
    reach = settings.size("local_attention", 128) // 2
    return Window(sliding, reach) if sliding else None


MODERNBERT = Architecture(
    shape=shape,
    prefix="model.",
    blocks="layers",
    embedding="embeddings.tok_embeddings",
    heads={
        MASKED: HeadPath("decoder", ("head",)),
        TEXTS: HeadPath("classifier", ("head", "dropout")),
        TOKENS: HeadPath("classifier", ("head", "dropout")),
    },
    attention_dropout=("attention_dropout", 0.0),
    dropout=("mlp_dropout", 0.0),
    embedding_dropout="embedding_dropout",
    poolings={"avg": "mean", "cls": "cls"},
    # Two kinds of blocks, each with and without gradients, for fixed and for varying lengths.
    compiles_padded=False,
)
