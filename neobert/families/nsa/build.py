"""Construction of a model with native sparse attention. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from neobert.config.schema import NsaModelConfig, RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.export.weights import load_weights
from neobert.families.attention import AttentionSpec
from neobert.families.backbone import Backbone, Head
from neobert.families.nsa.attention import SparseKernels, build_attend, choose_kernels
from neobert.families.nsa.by_token import attend_by_token
from neobert.families.nsa.model import NativeSparseAttention, NSAConfig, NSAForCausalLM
from neobert.families.nsa.reference import AttentionResult
from neobert.families.nsa.spec import attention_spec, linear_layers, model_section
from neobert.families.nsa.telemetry import attention_metrics
from neobert.families.table import max_row_length, model_shape
from neobert.parallel import World

log = logging.getLogger(__name__)

NAMES = (
    *("hidden_size", "num_hidden_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
    *("block_size", "block_counts", "window_size", "rope_theta", "norm_eps", "tie_word_embeddings"),
)
"""Keys of the section that are settings of the model."""


def build(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,
    auto_class: str,  # noqa: ARG001
    settings: Mapping[str, Any],  # noqa: ARG001
) -> Backbone:
    """Build the model with random weights, and choose its kernels.

    Raises `ProjectError` for kernels that cannot run.
    """
    section, shape = model_section(config), model_shape(config, vocab_size)
    values: dict[str, Any] = {name: getattr(section, name) for name in NAMES}
    ids = tokenizer.role_ids()
    values |= {name: ids[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model = NSAForCausalLM(
        NSAConfig(
            **values,
            vocab_size=vocab_size,
            max_position_embeddings=section.max_position_embeddings or max_row_length(config),
            use_cache=False,
        )
    )
    kernels = choose_kernels(world.device.type, world.compute_dtype, shape.attention)
    backbone = backbone_from_model(model, kernels)
    log.info("model: nsa, attention: %s (%s)", backbone.attention, backbone.attention_reason)
    return backbone


def backbone_from_model(model: NSAForCausalLM, kernels: SparseKernels) -> Backbone:
    """Return the backbone of a model over packed rows."""
    encoder, spec = model.model, model_attention_spec(model)
    modules = [each for each in encoder.modules() if isinstance(each, NativeSparseAttention)]
    assert spec.selected is not None

    def hidden(inputs: Mapping[str, Any]) -> Tensor:
        attend = build_attend(kernels, spec, inputs["cu_seqlens"], inputs["max_seqlen"])
        states: Tensor = encoder(
            input_ids=inputs["input_ids"], position_ids=inputs["position_ids"], attend=attend
        ).last_hidden_state
        return states

    def plain(document: Tensor) -> Tensor:
        places = torch.arange(len(document), device=document.device)
        states: Tensor = encoder(
            input_ids=document, position_ids=places, attend=partial(_attend_by_token, spec=spec)
        ).last_hidden_state
        return states

    return Backbone(
        model=model,
        blocks=list(encoder.layers),
        hidden=hidden,
        plain=plain,
        head=Head(model.lm_head),
        attention=kernels.sparse.name,
        attention_reason=kernels.sparse.reason,
        load=partial(load_weights, model),
        logged_metrics=partial(attention_metrics, modules, spec.selected),
        matrix_layouts={
            f"{name}.weight": each.layout for name, each in linear_layers(_model_section(model)).items()
        },
    )


def inference_backbone(model: NSAForCausalLM, device: torch.device, dtype: torch.dtype) -> Backbone:
    """Return the backbone of a loaded model. Raises `ProjectError` if no kernel can run."""
    return backbone_from_model(model, choose_kernels(device.type, dtype, model_attention_spec(model)))


def model_attention_spec(model: NSAForCausalLM) -> AttentionSpec:
    """Return the attention of a model's blocks."""
    return attention_spec(_model_section(model))


def _model_section(model: NSAForCausalLM) -> NsaModelConfig:
    return cast("NsaModelConfig", model.config)  # of the same names


def _attend_by_token(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, spec: AttentionSpec) -> AttentionResult:
    assert spec.selected is not None
    context, _ = attend_by_token(q, k, v, gates, spec.selected)
    return AttentionResult(context, torch.empty(0), torch.empty(0))
