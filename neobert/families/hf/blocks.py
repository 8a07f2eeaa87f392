"""Models described by their blocks: their attention and the weights of one block. Imports no torch.

D hidden, F feed-forward width, V vocabulary, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from neobert.families.attention import AttentionSpec
from neobert.families.hf.architecture import (
    CAUSAL,
    Architecture,
    HeadPath,
    attention_layers,
    measured_activations,
)
from neobert.families.hf.settings import KV_HEADS, Settings
from neobert.families.linear import GATE_UP, STACKED_QKV, WHOLE, Layout, Linear
from neobert.families.shape import ModelShape, ParameterCount, StoredActivations

QUERIES_KEYS_VALUES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION = (*QUERIES_KEYS_VALUES, "self_attn.o_proj")
COMPILED_REASON = "a compiled block keeps the inputs of its matrix products, and its residual stream"
GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class Sizes(NamedTuple):
    """Sizes of the blocks."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int


class StoredVectors(NamedTuple):
    """Activations that a block of transformers stores per token, measured: each number counts vectors.

    Attributes:
        width, hidden, queries, keys: vectors of width F, D, N * H and K * H in the compute type.
        wide_hidden, wide_queries, wide_keys: vectors in fp32, regardless of the compute type.
    """

    width: int = 4
    hidden: int = -1
    queries: int = 4
    keys: int = 0
    wide_hidden: int = 7
    wide_queries: int = 0
    wide_keys: int = 0


class Blocks(NamedTuple):
    """Attention of a model, and the weights of each of its blocks and around them.

    Attributes:
        attention: attention of all blocks.
        linear: linear layers.
        biased: names of the linear layers with a bias.
        norms: vectors of width D: scales and shifts of norms.
        head_norm_values: number of weights of the norms of queries and keys.
        last_norm: vectors of width D of the norm after the last block.
        unused_positions: rows of the position embedding beyond the longest sequence; None: rotary positions.
        has_decoder_bias: the decoder has a bias.
        is_tied: default of tie_word_embeddings.
        initial_rms, embedding_multiplier: as in `ModelShape`.
        stored: activations of a block, without torch.compile.
        is_transposed: weights are [inputs, outputs], for which Muon and adapters have no layouts.
    """

    attention: AttentionSpec
    linear: Mapping[str, Linear]
    biased: Collection[str] = ()
    norms: int = 2
    head_norm_values: int = 0
    last_norm: int = 1
    unused_positions: int | None = None
    has_decoder_bias: bool = False
    is_tied: bool = False
    initial_rms: float = 0.02
    embedding_multiplier: float = 1.0
    # Of a Llama: keys and values are repeated for all heads, and norms and rotations are in fp32.
    stored: StoredVectors = StoredVectors()
    is_transposed: bool = False


Describe = Callable[[Settings, Sizes], Blocks]


def read_sizes(settings: Settings, default: Sizes, names: Mapping[str, str]) -> Sizes:
    """Read the sizes of the blocks from settings, with `default` for missing ones.

    A missing num_key_value_heads is num_attention_heads unless that has its default.
    Raises `ProjectError` MOD006 if the heads do not divide the hidden size, or the heads of keys the heads.

    Args:
        default: sizes of the architecture in transformers; its head size is 0 if that is hidden / heads.
        names: names of the settings that differ from Llama's.
    """

    def size(name: str, default: int) -> int:
        return settings.size(names.get(name, name), default)

    hidden, heads = size("hidden_size", default.hidden), size("num_attention_heads", default.heads)
    if hidden % heads and not default.head_size and settings.values.get("head_dim") is None:
        name = names.get("num_attention_heads", "num_attention_heads")
        raise settings.invalid_value_error(name, f"a divisor of the hidden size {hidden}")
    kv_heads = size(KV_HEADS, default.kv_heads if heads == default.heads else heads)
    if heads % kv_heads:
        raise settings.invalid_value_error(KV_HEADS, f"a divisor of the {heads} heads")
    return Sizes(
        hidden,
        size("num_hidden_layers", default.layers),
        heads,
        kv_heads,
        size("head_dim", default.head_size or hidden // heads),
        size("intermediate_size", default.width or 4 * hidden),
    )


def causal_attention(sizes: Sizes, **more: Any) -> AttentionSpec:
    """Return causal attention over whole documents, with the fields `more` of `AttentionSpec`."""
    return AttentionSpec(
        heads=sizes.heads, kv_heads=sizes.kv_heads, head_size=sizes.head_size, direction="causal", **more
    )


def custom_scale(sizes: Sizes, scale: float) -> float | None:
    """Return the scale of scores, or None for the default by head size."""
    return None if scale == sizes.head_size**-0.5 else scale


def separate_attention(sizes: Sizes, names: tuple[str, str, str, str] = ATTENTION) -> dict[str, Linear]:
    """Return the layers of attention with one layer each for queries, keys, values and the output."""
    return attention_layers(names, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_size)


def gated_layers(sizes: Sizes) -> dict[str, Linear]:
    """Return the linear layers of a Llama's block."""
    gate, up, down = GATED
    inner = Linear(sizes.hidden, sizes.width)
    return separate_attention(sizes) | {gate: inner, up: inner, down: Linear(sizes.width, sizes.hidden)}


def joined_gate_layers(sizes: Sizes) -> dict[str, Linear]:
    """Return the layers of a gated feed-forward with one layer for gate and up."""
    joined = Linear(sizes.hidden, 2 * sizes.width, Layout(GATE_UP))
    return {"mlp.gate_up_proj": joined, "mlp.down_proj": Linear(sizes.width, sizes.hidden)}


def stacked_attention(sizes: Sizes, name: str) -> dict[str, Linear]:
    """Return the layer `name` of stacked queries, keys and values, one matrix in Muon for grouped heads."""
    is_equal = sizes.heads == sizes.kv_heads
    rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
    return {name: Linear(sizes.hidden, rows, Layout(STACKED_QKV, sizes.heads) if is_equal else Layout(WHOLE))}


def output_layer(sizes: Sizes, name: str) -> dict[str, Linear]:
    """Return the output projection of attention."""
    return {name: Linear(sizes.heads * sizes.head_size, sizes.hidden)}


def biased_layers(settings: Settings) -> tuple[str, ...]:
    """Return the linear layers with a bias, by Llama's settings."""
    attention, feed_forward = (settings.flag(name, False) for name in ("attention_bias", "mlp_bias"))
    return ATTENTION * attention + GATED * feed_forward


def shape_from_blocks(
    settings: Settings,
    vocab_size: int,
    positions: int,
    *,
    architecture: str,
    default: Sizes,
    describe: Describe,
    names: Mapping[str, str],
) -> ModelShape:
    """Return the shape of a model whose head is the decoder alone.

    Raises `ProjectError` MOD006 for an invalid or unsupported setting.
    """
    sizes = read_sizes(settings, default, names)
    blocks = describe(settings, sizes)
    hidden, layers, heads, _, head_size, width = sizes
    biases = sum(blocks.linear[name].outputs for name in blocks.biased)
    is_tied = settings.flag("tie_word_embeddings", blocks.is_tied)
    is_rotary = blocks.unused_positions is None
    tables = 0 if blocks.unused_positions is None else positions + blocks.unused_positions
    return ModelShape(
        architecture=architecture,
        hidden_size=hidden,
        num_layers=layers,
        attention_width=heads * head_size,
        feed_forward_width=width,
        vocab_size=vocab_size,
        attention=blocks.attention,
        positions="rotary" if is_rotary else "learned",
        max_positions=positions,
        linear_layers={} if blocks.is_transposed else blocks.linear,
        parameters=ParameterCount(
            linear=layers * sum(each.inputs * each.outputs for each in blocks.linear.values()),
            vectors=layers * (blocks.norms * hidden + blocks.head_norm_values + biases)
            + blocks.last_norm * hidden,
            embeddings=(vocab_size + tables) * hidden,
            decoder=(0 if is_tied else vocab_size * hidden) + vocab_size * blocks.has_decoder_bias,
        ),
        decoder_products=hidden * vocab_size,
        initial_rms=settings.number(names.get("initializer_range", "initializer_range"), blocks.initial_rms),
        embedding_multiplier=blocks.embedding_multiplier,
        kept=_stored_activations(settings, sizes, blocks),
        has_fp32_stream=not blocks.attention.is_causal,
    )


def _stored_activations(settings: Settings, sizes: Sizes, blocks: Blocks) -> dict[str, StoredActivations]:
    hidden, width, stored = sizes.hidden, sizes.width, blocks.stored
    queries, keys = (heads * sizes.head_size for heads in (sizes.heads, sizes.kv_heads))
    found = measured_activations(
        settings,
        sizes.heads,
        stored.width * width + stored.hidden * hidden + stored.queries * queries + stored.keys * keys,
        stored.wide_hidden * hidden + stored.wide_queries * queries + stored.wide_keys * keys,
    )
    if stored == StoredVectors() and not settings.is_eager:
        values, stream = 3 * width + 4 * queries + 2 * keys + 2 * hidden, 2 * hidden
        wide = 0 if blocks.attention.is_causal else stream
        found["compiled"] = StoredActivations(values + stream - wide, wide + sizes.heads, COMPILED_REASON)
    return found


def model_of_blocks(
    name: str, default: Sizes, describe: Describe, *, names: Mapping[str, str] | None = None, **parts: Any
) -> Architecture:
    """Return an architecture of blocks, with part names and head of a Llama unless `parts` sets others."""
    llama_parts: dict[str, Any] = {
        "prefix": "model.",
        "blocks": "layers",
        "embedding": "embed_tokens",
        "heads": {CAUSAL: HeadPath("lm_head")},
        "attention_dropout": ("attention_dropout", 0.0),
        "poolings": {},
    }
    shape = partial(
        shape_from_blocks, architecture=name, default=default, describe=describe, names=names or {}
    )
    return Architecture(shape=shape, names=names or {}, **llama_parts | parts)
