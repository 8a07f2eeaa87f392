"""Shapes of transformers' architectures: one function each, in a table by `model_type`.

Defaults are those of transformers. D hidden, F feed-forward width, V vocabulary, P positions, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neobert.families.hf.settings import Settings
from neobert.families.shape import Kept, ModelShape, ParameterCount, Window

KEPT_REASON = "a block keeps the inputs of its products, of its norms and of its activation"
LAYER_TYPES = ("full_attention", "sliding_attention")


def bert_shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Read a BERT: post-norm blocks with biases, learned positions, token types, a head with a transform."""
    if settings.flag("is_decoder", False):
        raise settings.wrong("is_decoder", "false: the model has to attend in both directions")
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 12)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 3072)
    is_tied = settings.flag("tie_word_embeddings", True)
    has_dropout = settings.number("hidden_dropout_prob", 0.1) > 0
    return ModelShape(
        architecture="bert",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        attention_width=hidden,
        feed_forward_width=width,
        is_gated=False,
        vocab_size=vocab_size,
        has_tied_embeddings=is_tied,
        direction="bidirectional",
        window=None,
        positions="learned",
        max_positions=positions,
        parameters=ParameterCount(
            linear=layers * (4 * hidden * hidden + 2 * hidden * width),
            vectors=layers * (9 * hidden + width) + 2 * hidden,
            embeddings=(vocab_size + positions + settings.size("type_vocab_size", 2)) * hidden,
            # Untied, transformers keeps the bias twice: of the decoder and of the head around it.
            decoder=hidden * hidden + 3 * hidden + vocab_size + (0 if is_tied else vocab_size * (hidden + 1)),
        ),
        decoder_products=hidden * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=_kept(settings, (4 + 2 * has_dropout) * hidden + 2 * width, 4 * hidden),
    )


def modernbert_shape(settings: Settings, vocab_size: int, positions: int) -> ModelShape:
    """Read a ModernBERT: pre-norm gated blocks, rotary positions, sliding windows in most blocks."""
    hidden, layers = settings.size("hidden_size", 768), settings.size("num_hidden_layers", 22)
    heads, width = settings.size("num_attention_heads", 12), settings.size("intermediate_size", 1152)
    is_tied = settings.flag("tie_word_embeddings", True)
    per_norm = 2 * hidden if settings.flag("norm_bias", False) else hidden
    attention_biases = 4 * hidden if settings.flag("attention_bias", False) else 0
    feed_forward_biases = 2 * width + hidden if settings.flag("mlp_bias", False) else 0
    head_bias = hidden if settings.flag("classifier_bias", False) else 0
    decoder_bias = vocab_size if settings.flag("decoder_bias", True) else 0
    is_eager = settings.values.get("attn_implementation") == "eager"
    own_decoder = 0 if is_tied else vocab_size * hidden
    return ModelShape(
        architecture="modernbert",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        attention_width=hidden,
        feed_forward_width=width,
        is_gated=True,
        vocab_size=vocab_size,
        has_tied_embeddings=is_tied,
        direction="bidirectional",
        window=_window(settings, layers),
        positions="rotary",
        max_positions=positions,
        parameters=ParameterCount(
            linear=layers * (4 * hidden * hidden + 3 * hidden * width),
            # Block 0 has no norm before attention; one follows the embedding and one the last block.
            vectors=layers * (2 * per_norm + attention_biases + feed_forward_biases) + per_norm,
            embeddings=vocab_size * hidden,
            decoder=hidden * hidden + head_bias + per_norm + decoder_bias + own_decoder,
        ),
        decoder_products=hidden * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=_kept(settings, (6 if is_eager else 8) * hidden + 4 * width, 2 * hidden),
    )


def _kept(settings: Settings, values: int, fp32_values: int) -> dict[str, Kept]:
    """Count what autograd keeps of one block, as measured on transformers' modules: see `Kept`.

    SDPA keeps its mask, one number per token that is attended to. The eager attention keeps the probabilities
    of every head, in fp32 from the softmax and in the compute type for the product.
    """
    heads = settings.size("num_attention_heads", 12)
    statistics = 4 + heads
    if settings.values.get("attn_implementation") == "eager":
        kept = Kept(values, fp32_values + statistics, KEPT_REASON, scores=heads, fp32_scores=heads)
    else:
        kept = Kept(values, fp32_values + statistics, KEPT_REASON, scores=1)
    return {"eager": kept}


def _window(settings: Settings, layers: int) -> Window | None:
    """Read which blocks attend within a window: a list by block, or every n-th attends to all."""
    types = settings.values.get("layer_types")
    if types is None:
        every = settings.size("global_attn_every_n_layers", 3)
        num_sliding = sum(index % every != 0 for index in range(layers))
    else:
        num_sliding = _counted(settings, types, layers)
    reach = settings.size("local_attention", 128) // 2
    return Window(num_sliding, reach) if num_sliding else None


def _counted(settings: Settings, types: Any, layers: int) -> int:
    if not isinstance(types, list) or len(types) != layers or any(one not in LAYER_TYPES for one in types):
        raise settings.wrong("layer_types", f"{layers} times {' or '.join(LAYER_TYPES)}")
    return types.count("sliding_attention")


ARCHITECTURES: dict[str, Callable[[Settings, int, int], ModelShape]] = {
    "bert": bert_shape,
    "modernbert": modernbert_shape,
}
