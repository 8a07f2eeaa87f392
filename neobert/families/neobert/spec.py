"""Shape of a NeoBERT model, derived from the config section `model`. Imports no torch.

L blocks, D hidden, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from neobert.config.schema import ModelConfig, RunConfig
from neobert.families.attention import AttentionSpec
from neobert.families.family import Family, UnsupportedKey
from neobert.families.linear import Linear
from neobert.families.neobert.trained_settings import (
    embedding_multiplier,
    positions_of_section,
    rope_theta_for,
    trained_positions,
)
from neobert.families.shape import ModelShape, ParameterCount, StoredActivations
from neobert.kernel_table import BLOCKS, OWN_KERNELS, BlockKernel

SCALED_STD = 0.02
"""As in `neobert.model.pretrained`, whose file travels in checkpoints and cannot be imported here."""


def read_shape(model: ModelConfig, vocab_size: int, max_row_length: int) -> ModelShape:
    """Return the shape of the model that the section describes, for rows of up to `max_row_length` tokens."""
    positions = positions_of_section(model, max_row_length)
    return ModelShape(
        architecture="NeoBERT",
        hidden_size=model.hidden_size,
        num_layers=model.num_hidden_layers,
        attention_width=model.hidden_size,
        feed_forward_width=feed_forward_width(model),
        vocab_size=vocab_size,
        attention=attention_spec(model),
        positions="rotary" if model.rope else "learned",
        max_positions=positions,
        rope_theta=model.rope_theta,
        linear_layers=linear_layers(model),
        parameters=_count_parameters(model, vocab_size, positions),
        decoder_products=vocab_size * model.hidden_size,
        initial_rms=_initial_rms(model),
        embedding_multiplier=embedding_multiplier(model),
        kept=_stored_activations(model),
    )


def attention_spec(model: ModelConfig) -> AttentionSpec:
    """Return the attention of the section: in both directions, with as many heads of keys as of queries."""
    heads = model.num_attention_heads
    return AttentionSpec(heads=heads, kv_heads=heads, head_size=model.hidden_size // heads)


def _initial_rms(model: ModelConfig) -> float:
    if model.init == "scaled":
        return SCALED_STD
    return model.decoder_init_range / math.sqrt(3)  # of a uniform distribution


def model_section(config: RunConfig) -> ModelConfig:
    """Return the section `model` of a run with this model family; other families fail an assertion."""
    assert isinstance(config.model, ModelConfig), "config of another model family"
    return config.model


def with_positions(model: ModelConfig, max_row_length: int) -> ModelConfig:
    """Return the section with max_position_embeddings set."""
    return replace(model, max_position_embeddings=positions_of_section(model, max_row_length))


def feed_forward_width(model: ModelConfig) -> int:
    """Return F: for SwiGLU two thirds of the nominal width, rounded up to a multiple of 8."""
    if model.hidden_act == "swiglu":
        return 8 * math.ceil(int(2 * model.intermediate_size / 3) / 8)
    return model.intermediate_size


def linear_layers(model: ModelConfig) -> Mapping[str, Linear]:
    """Return the linear layers of a block by their name in it."""
    hidden, width = model.hidden_size, feed_forward_width(model)
    attention = {"qkv": Linear(hidden, 3 * hidden), "wo": Linear(hidden, hidden)}
    if model.hidden_act == "swiglu":
        return attention | {"ffn.w12": Linear(hidden, 2 * width), "ffn.w3": Linear(width, hidden)}
    return attention | {"ffn.0": Linear(hidden, width), "ffn.2": Linear(width, hidden)}


def _count_parameters(model: ModelConfig, vocab_size: int, positions: int) -> ParameterCount:
    hidden, layers = model.hidden_size, model.num_hidden_layers
    feed_forward_matrices = 3 if model.hidden_act == "swiglu" else 2
    per_block = attention_spec(model).num_weights(
        hidden
    ) + feed_forward_matrices * hidden * feed_forward_width(model)
    per_norm = hidden if model.rms_norm else 2 * hidden
    return ParameterCount(
        linear=layers * per_block,
        vectors=(2 * layers + 1) * per_norm,
        embeddings=vocab_size * hidden + (0 if model.rope else positions * hidden),
        decoder=0 if model.tie_word_embeddings else vocab_size * (hidden + 1),
    )


def _stored_activations(model: ModelConfig) -> dict[str, StoredActivations]:
    """Return the activations that one block stores for the backward pass, measured on this project's model.

    This project's kernels also store statistics per row: two reciprocal root mean squares, a log-sum-exp per
    head. Compiled graphs store the whole of qkv because v is a part of it.
    """
    hidden, width = model.hidden_size, feed_forward_width(model)
    statistics = 2 + model.num_attention_heads
    gates = 3 if model.hidden_act == "swiglu" else 2
    masks = 2 * hidden if model.dropout else 0
    return {
        **{name: _stored_by_own_kernel(BLOCKS[name], hidden, width, statistics) for name in OWN_KERNELS},
        "compiled": StoredActivations(
            10 * hidden + gates * width + masks,
            hidden,
            "a block keeps the inputs of its matrix products, q, k, v, rotated q and k, gate, up, their "
            "product, and the residual stream in fp32",
        ),
        "eager": StoredActivations(
            9 * hidden + (gates + 1) * width + masks,
            4 * hidden,
            "a block keeps the tensors of a compiled block, the activated gate, and the norms' steps in fp32",
        ),
    }


def _stored_by_own_kernel(kernel: BlockKernel, hidden: int, width: int, statistics: int) -> StoredActivations:
    values = kernel.kept_hidden * hidden + kernel.kept_width * width
    return StoredActivations(values, statistics, f"a block keeps {kernel.kept}", is_bf16=True)


def unsupported_keys(config: RunConfig) -> Iterator[UnsupportedKey]:
    """Yield kernels without dropout, and ranges of initialization that `init: scaled` does not read."""
    section, default = model_section(config), ModelConfig()
    for name in ("embedding_init_range", "decoder_init_range"):
        if section.init == "scaled" and getattr(section, name) != getattr(default, name):
            problem = f"model.init scaled does not read model.{name} ({getattr(section, name):g})"
            yield UnsupportedKey(
                f"model.{name}", problem, f"remove model.{name}, or set model.init to published"
            )
    if section.dropout and section.kernel_backend not in ("auto", "torch"):
        problem = (
            f"model.dropout is {section.dropout:g}, and {section.kernel_backend} kernels have no dropout"
        )
        hint = "set model.kernel_backend to torch, or model.dropout to 0"
        yield UnsupportedKey("model.kernel_backend", problem, hint)


def requested_kernels(model: ModelConfig) -> tuple[str, str]:
    """Return the kernels of the section: blocks with dropout are torch modules."""
    blocks = "torch" if model.dropout and model.kernel_backend == "auto" else model.kernel_backend
    return blocks, model.attn_backend


NEOBERT = Family(
    name="neobert",
    module="neobert.families.neobert.build",
    read_shape=read_shape,
    requested_rows=lambda model: model.vocab_size,
    requested_kernels=requested_kernels,
    dropout=lambda model: model.dropout,
    with_kernels=lambda model, blocks: replace(model, kernel_backend=blocks),
    has_numerics_probes=True,
    unsupported=unsupported_keys,
    trained_positions=trained_positions,
    rope_theta_for=rope_theta_for,
)
