"""Construction of a NeoBERT from the run's config. `neobert.objectives` chooses the kernels beforehand."""

from __future__ import annotations

from typing import Any

from neobert.config.schema import ModelConfig
from neobert.families.neobert.trained_settings import embedding_multiplier
from neobert.model.configuration_neobert import NeoBERTConfig


def build_model_config(
    model: ModelConfig,
    vocab_size: int,
    pad_token_id: int | None,
    attn_backend: str,
    kernel_backend: str = "torch",
    **head: Any,
) -> NeoBERTConfig:
    """Return the `NeoBERTConfig` of a run.

    Args:
        vocab_size: rows of the embedding, padding to a multiple of 128 included.
        pad_token_id: padding token of the tokenizer; None if it has none.
        attn_backend, kernel_backend: the kernels that `resolve_step_kernels` chose.
        head: settings of a head, as arguments of `NeoBERTConfig`.
    """
    return NeoBERTConfig(
        vocab_size=vocab_size,
        pad_token_id=pad_token_id,
        attn_backend=attn_backend,
        kernel_backend=kernel_backend,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        max_position_embeddings=model.max_position_embeddings,
        rope=model.rope,
        rope_theta=model.rope_theta,
        rms_norm=model.rms_norm,
        norm_eps=model.norm_eps,
        hidden_act=model.hidden_act,
        hidden_dropout_prob=model.dropout,
        tie_word_embeddings=model.tie_word_embeddings,
        embedding_multiplier=embedding_multiplier(model),
        init=model.init,
        **_init_ranges(model),
        **head,
    )


def _init_ranges(model: ModelConfig) -> dict[str, Any]:
    """Return the ranges of uniform initialization; empty for `init: scaled`, where MOD005 rejects them."""
    if model.init == "scaled":
        return {}
    return {
        "embedding_init_range": model.embedding_init_range,
        "decoder_init_range": model.decoder_init_range,
    }
