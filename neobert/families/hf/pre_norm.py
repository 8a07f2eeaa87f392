"""Shape of blocks with rotary positions and a gated feed-forward, as a Llama's. Imports no torch.

D hidden, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from neobert.families.attention import AttentionSpec
from neobert.families.hf.architecture import attention_layers, kept
from neobert.families.hf.settings import KV_HEADS, Settings
from neobert.families.linear import Linear
from neobert.families.shape import ModelShape, ParameterCount

QUERIES_KEYS_VALUES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION = (*QUERIES_KEYS_VALUES, "self_attn.o_proj")
GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def biased_layers(settings: Settings) -> tuple[str, ...]:
    """Return the linear layers with a bias, by Llama's settings."""
    attention, feed_forward = (settings.flag(name, False) for name in ("attention_bias", "mlp_bias"))
    return ATTENTION * attention + GATED * feed_forward


class Sizes(NamedTuple):
    """Sizes of the blocks."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int


def read_sizes(settings: Settings, default: Sizes) -> Sizes:
    """Read the sizes by the names of Llama's settings.

    `default` has those of the architecture in transformers; its head size is 0 if that is hidden / heads.
    Without a setting, a model with another number of heads has as many heads of keys and values.
    """
    hidden = settings.size("hidden_size", default.hidden)
    heads = settings.size("num_attention_heads", default.heads)
    kv_heads = settings.size(KV_HEADS, default.kv_heads if heads == default.heads else heads)
    if heads % kv_heads:
        raise settings.wrong(KV_HEADS, f"a divisor of the {heads} heads")
    return Sizes(
        hidden,
        settings.size("num_hidden_layers", default.layers),
        heads,
        kv_heads,
        settings.size("head_dim", default.head_size or hidden // heads),
        settings.size("intermediate_size", default.width),
    )


def attention_of(sizes: Sizes) -> AttentionSpec:
    """Return causal attention over whole documents."""
    return AttentionSpec(
        heads=sizes.heads, kv_heads=sizes.kv_heads, head_size=sizes.head_size, direction="causal"
    )


def gated_shape(
    settings: Settings,
    sizes: Sizes,
    attention: AttentionSpec,
    *,
    architecture: str,
    vocab_size: int,
    max_positions: int,
    biased: Collection[str] = (),
    is_tied: bool = False,
    decoder_bias: int = 0,
) -> ModelShape:
    """Return the shape. The head is the decoder alone.

    Args:
        biased: linear layers with a bias.
        is_tied: default of tie_word_embeddings.
        decoder_bias: number of biases of the decoder.
    """
    hidden, layers, heads, kv_heads, head_size, width = sizes
    linear_layers = {
        **attention_layers(ATTENTION, hidden, heads, kv_heads, head_size),
        **dict.fromkeys(GATED[:2], Linear(hidden, width)),
        GATED[2]: Linear(width, hidden),
    }
    biases = sum(linear_layers[name].outputs for name in biased)
    own_decoder = 0 if settings.flag("tie_word_embeddings", is_tied) else vocab_size * hidden
    queries = heads * head_size
    return ModelShape(
        architecture=architecture,
        hidden_size=hidden,
        num_layers=layers,
        attention_width=queries,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=attention,
        positions="rotary",
        max_positions=max_positions,
        linear_layers=linear_layers,
        parameters=ParameterCount(
            linear=layers * sum(each.inputs * each.outputs for each in linear_layers.values()),
            vectors=layers * (2 * hidden + biases) + hidden,
            embeddings=vocab_size * hidden,
            decoder=own_decoder + decoder_bias,
        ),
        decoder_products=hidden * vocab_size,
        initial_rms=settings.number("initializer_range", 0.02),
        # Keys and values are repeated for all heads, and norms and rotations are in fp32.
        kept=kept(settings, heads, 4 * queries + 4 * width - hidden, 7 * hidden),
    )
