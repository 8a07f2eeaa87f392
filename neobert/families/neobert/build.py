"""Construction of a NeoBERT model. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neobert.config.schema import RunConfig
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.errors import ProjectError
from neobert.export.weights import load_weights
from neobert.families.attention import AttentionSpec
from neobert.families.backbone import Backbone, Head
from neobert.families.linear import GATE_UP, QKV, WHOLE, Layout
from neobert.families.neobert.spec import model_section, with_positions
from neobert.families.table import max_row_length
from neobert.kernels.plain_attention import plain_attention
from neobert.model import NeoBERTLMHead, build_model_config, modeling_neobert
from neobert.model.configuration_neobert import AUTO_MAP
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.objectives.packed_encoder import KernelObjective
from neobert.objectives.step_kernels import StepKernels, resolve_step_kernels
from neobert.parallel import World

log = logging.getLogger(__name__)

MODELS: Mapping[str, type[NeoBERTPreTrainedModel]] = {
    auto_class: getattr(modeling_neobert, name.rpartition(".")[2])
    for auto_class, name in AUTO_MAP.items()
    if auto_class != "AutoConfig"
}
"""Model class of each auto class of transformers, by its name."""
OTHER_MATRICES = {
    "wo.weight": Layout(WHOLE),
    "ffn.w12.weight": Layout(GATE_UP),
    **{f"ffn.{name}.weight": Layout(WHOLE) for name in ("w3", "0", "2")},
}
"""Layouts of a block's matrices other than qkv, for both kinds of feed-forward."""
PLAIN = StepKernels("torch", "sdpa", "sdpa", "")
"""Kernels that run everywhere."""


def build(
    config: RunConfig,
    tokenizer: TokenizerBundle,
    vocab_size: int,
    world: World,
    auto_class: str,
    settings: Mapping[str, Any],
) -> Backbone:
    """Build an encoder, with a head or without, with random weights, and choose the kernels of its step.

    `settings` are arguments of `NeoBERTConfig`. Raises `ProjectError` MOD005 for a task without a head, and
    ATT001 if a kernel that the config names cannot run.
    """
    if auto_class not in MODELS:
        message = f"model.type neobert: NeoBERT has no head for task {config.task}"
        hint = "set model.type to hf with a transformers model that has the head, or set another task"
        raise ProjectError("MOD005", message, hint, "task")
    kernels = resolve_step_kernels(config, world.device.type, world.compute_dtype)
    log.info("kernels: %s, attention: %s (%s)", kernels.name, kernels.attention, kernels.reason)
    section = with_positions(model_section(config), max_row_length(config))
    # A head that does not pool gets the pooling of embeddings, which the model card states.
    head = {"pooling": "avg", **settings}
    model_config = build_model_config(
        section, vocab_size, tokenizer.pad_id, kernels.model_attention, kernels.modules, **head
    )
    model = MODELS[auto_class](model_config)
    return backbone_from_model(model, kernels)


def backbone_from_model(model: NeoBERTPreTrainedModel, kernels: StepKernels = PLAIN) -> Backbone:
    """Return the backbone of a NeoBERT with any head, or with none."""
    encoder, is_lm, config = model.base_model, isinstance(model, NeoBERTLMHead), model.config
    heads = config.num_attention_heads
    spec = AttentionSpec(heads=heads, kv_heads=heads, head_size=config.dim_head)

    def hidden(inputs: Mapping[str, Any]) -> Tensor:
        read = {name: each for name, each in inputs.items() if name != "token_type_ids"}
        states: Tensor = encoder(**read).last_hidden_state
        return states.flatten(0, -2)

    def plain(document: Tensor) -> Tensor:
        x = encoder.get_input_embeddings()(document) * config.embedding_multiplier
        with torch.compiler.set_stance("force_eager"):
            states: Tensor = encoder.run_blocks(x, None, partial(plain_attention, spec=spec), False)[-1]
        return states

    ends = [encoder.encoder, *([model.decoder] if is_lm else [])]
    return Backbone(
        model=model,
        blocks=list(encoder.transformer_encoder),
        hidden=hidden,
        plain=plain,
        head=_model_head(model),
        attention=kernels.attention,
        attention_reason=kernels.reason,
        load=partial(load_weights, model, missing_ok=() if is_lm else model.fresh_parts),
        ends=() if is_lm and config.tie_word_embeddings else ends,
        matrix_layouts={"qkv.weight": Layout(QKV, model.config.num_attention_heads)} | OTHER_MATRICES,
        head_parts=model.fresh_parts,
        token_objective=partial(KernelObjective, kernels=kernels) if kernels.replaces_blocks else None,
        kernels=kernels.name,
    )


def _model_head(model: NeoBERTPreTrainedModel) -> Head | None:
    if not model.fresh_parts:
        return None
    # The last layer of a head is the one that its class names last.
    linear = model.get_submodule(model.fresh_parts[-1].removesuffix("."))
    assert isinstance(linear, nn.Linear)
    if transform := getattr(model, "features", None):
        return Head(linear, transform, model.config.pooling)
    return Head(linear, getattr(model, "dropout", nn.Identity()))
