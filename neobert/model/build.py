"""From the run's configuration to a model. Backends are resolved once, with a reason, before it is built."""

from __future__ import annotations

import torch

from neobert.config.schema import ModelConfig
from neobert.errors import ProjectError
from neobert.model.backends import Backend, BackendError, choose_backend, choose_kernels
from neobert.model.configuration_neobert import NeoBERTConfig
from neobert.model.pretrained import NeoBERTPreTrainedModel


def resolve_attention_backend(requested: str, device_type: str, dtype: torch.dtype) -> Backend:
    """Name the kernel for packed runs on this device ("cpu", "cuda") and compute type, and why.

    Raises `ProjectError` where the kernel that was named cannot run; nothing is swapped silently.
    """
    try:
        return choose_backend(requested, device_type, dtype)
    except BackendError as error:
        raise ProjectError("ATT001", error.message, error.hint, place="model.attn_backend") from error


def resolve_kernel_backend(requested: str, device_type: str, is_compiled: bool = False) -> Backend:
    """Name the norm and activation kernels for this device, and why. Raises `ProjectError` likewise.

    Under torch.compile auto leaves liger out: on an H200 a compiled step took 142 ms with it, 124 without.
    """
    try:
        return choose_kernels(requested, device_type, is_compiled)
    except BackendError as error:
        raise ProjectError("ATT001", error.message, error.hint, place="model.kernel_backend") from error


def build_model_config(
    model: ModelConfig,
    vocab_size: int,
    pad_token_id: int,
    attn_backend: str,
    kernel_backend: str | None = None,
) -> NeoBERTConfig:
    """Translate the section `model`, with what was resolved for this run.

    Args:
        vocab_size: rows of the embedding, padding to a multiple of 128 included.
        attn_backend, kernel_backend: names from the resolvers; kernels are resolved here where none is given.
    """
    if kernel_backend is None:
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
        kernel_backend = resolve_kernel_backend(model.kernel_backend, device_type).name
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
        tie_word_embeddings=model.tie_word_embeddings,
        embedding_init_range=model.embedding_init_range,
        decoder_init_range=model.decoder_init_range,
    )


def materialize(model: NeoBERTPreTrainedModel, device: torch.device | str) -> None:
    """Give a model that was built on the meta device memory and initial weights, in place."""
    model.to_empty(device=device)
    for module in model.modules():
        module._is_hf_initialized = False
    model.initialize_weights()
    # Moving off meta makes a parameter of every name, and so unties what was tied.
    model.tie_weights()
