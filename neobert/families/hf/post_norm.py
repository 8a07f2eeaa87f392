"""Shape of post-norm blocks with biases, as BERT's. Imports no torch.

D hidden, E width of the embeddings, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

from neobert.families.attention import AttentionSpec
from neobert.families.hf.architecture import attention_layers, measured_activations
from neobert.families.hf.settings import Settings
from neobert.families.linear import Linear
from neobert.families.shape import ModelShape, ParameterCount

BERT_LAYERS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
"""Linear layers of a block: queries, keys, values and output of attention, and both of the feed-forward."""


BERT_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
"""Settings of D, the number of blocks, the number of heads, and F, with their defaults."""


def post_norm_shape(
    settings: Settings,
    vocab_size: int,
    max_positions: int,
    *,
    architecture: str,
    tables: int,
    sizes: Mapping[str, int] = BERT_SIZES,
    names: tuple[str, str, str, str, str, str] = BERT_LAYERS,
    embedding_size: int | None = None,
    has_own_bias: bool = True,
    num_dropouts: int = 2,
    dropout: str = "hidden_dropout_prob",
) -> ModelShape:
    """Return the shape. The head is a transform (dense layer and norm) and the decoder.

    Raises `ProjectError` MOD006 for a decoder model, and for an invalid setting.

    Args:
        tables: rows of the embeddings other than the token embedding, of width E.
        embedding_size: E; None: D. Another width needs a projection.
        has_own_bias: with untied weights, transformers keeps the decoder's bias twice.
        num_dropouts: dropouts of a block outside attention.
        dropout: setting of their probability.
    """
    if settings.flag("is_decoder", False):
        raise settings.invalid_value_error("is_decoder", "false: the model must attend in both directions")
    hidden, layers, heads, width = (settings.size(name, default) for name, default in sizes.items())
    embedded = embedding_size or hidden
    attention = AttentionSpec(heads=heads, kv_heads=heads, head_size=hidden // heads)
    linear_layers = {
        **attention_layers(names[:4], hidden, heads, heads, hidden // heads),
        names[4]: Linear(hidden, width),
        names[5]: Linear(width, hidden),
    }
    projection = embedded * hidden if embedded != hidden else 0
    own = 0 if settings.flag("tie_word_embeddings", True) else vocab_size * (embedded + has_own_bias)
    has_dropout = settings.number(dropout, 0.1) > 0
    return ModelShape(
        architecture=architecture,
        hidden_size=hidden,
        num_layers=layers,
        attention_width=hidden,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="learned",
        max_positions=max_positions,
        linear_layers=linear_layers,
        parameters=ParameterCount(
            # The projection of embeddings, before the blocks, costs what a product of the blocks costs.
            linear=layers * sum(each.inputs * each.outputs for each in linear_layers.values()) + projection,
            vectors=layers * (9 * hidden + width) + 2 * embedded + (hidden if projection else 0),
            embeddings=(vocab_size + tables) * embedded,
            decoder=hidden * embedded + 3 * embedded + vocab_size + own,
        ),
        decoder_products=embedded * (hidden + vocab_size),
        initial_rms=settings.number("initializer_range", 0.02),
        kept=measured_activations(
            settings, heads, (4 + num_dropouts * has_dropout) * hidden + 2 * width, 4 * hidden
        ),
    )
