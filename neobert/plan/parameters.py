"""How many parameters the model has, to the last one, and how many work in its matrix products.

L blocks, D hidden, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from neobert.config.schema import ModelConfig, RunConfig

VOCAB_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by what they do.

    Attributes:
        linear: weights of the blocks' matrix products.
        norms: scales (and, for LayerNorm, shifts).
        embeddings: token table and, without rotary positions, the position table.
        decoder: the unshared decoder with its bias; 0 when it shares the embedding.
    """

    linear: int
    norms: int
    embeddings: int
    decoder: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.linear + self.norms + self.embeddings + self.decoder


def model_of(config: RunConfig) -> ModelConfig:
    """Return the section `model` with the positions that null stands for: one per token of a row."""
    longest = config.datacollator.max_length or config.dataset.max_seq_length
    return replace(config.model, max_position_embeddings=config.model.max_position_embeddings or longest)


def feed_forward_width(model: ModelConfig) -> int:
    """Return F: for SwiGLU two thirds of the nominal width, rounded up to a multiple of 8."""
    if model.hidden_act == "swiglu":
        return 8 * math.ceil(int(2 * model.intermediate_size / 3) / 8)
    return model.intermediate_size


def count_parameters(model: ModelConfig, vocab_size: int) -> ParameterCount:
    """Count the parameters of the encoder with its decoder; `model_of` fills in learned positions."""
    hidden, layers = model.hidden_size, model.num_hidden_layers
    feed_forward_matrices = 3 if model.hidden_act == "swiglu" else 2
    per_block = 4 * hidden * hidden + feed_forward_matrices * hidden * feed_forward_width(model)
    per_norm = hidden if model.rms_norm else 2 * hidden
    assert model.rope or model.max_position_embeddings is not None, "learned positions need their number"
    positions = 0 if model.rope else (model.max_position_embeddings or 0) * hidden
    decoder = 0 if model.tie_word_embeddings else vocab_size * (hidden + 1)
    return ParameterCount(
        linear=layers * per_block,
        norms=(2 * layers + 1) * per_norm,
        embeddings=vocab_size * hidden + positions,
        decoder=decoder,
    )


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is not below `value`."""
    return multiple * math.ceil(value / multiple)
