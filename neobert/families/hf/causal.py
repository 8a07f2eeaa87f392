"""Preparation of causal transformers models for training. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from neobert.families.hf.parts import model_architecture


def prepare_causal(model: PreTrainedModel) -> dict[str, Any]:
    """Prepare a causal model for training; return the arguments of its forward.

    The padding token, which often ends texts too, gets gradients. Under autocast the residual stream has the
    compute type: in fp32 it would cost memory and time in every block. What is added to it has that type too:
    the position embedding, and the norms after the parts of a block.
    """
    table: Any = model.get_input_embeddings()
    table.padding_idx = None
    model.base_model.register_forward_pre_hook(_cast_embeddings_argument, with_kwargs=True)
    norms = model_architecture(model).added_norms
    for name, module in model.base_model.named_modules():
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] in norms:
            module.register_forward_hook(lambda _module, _arguments, added: _to_compute_type(added))
    return {"use_cache": False}  # keys and values of earlier calls are for generation


def _cast_embeddings_argument(
    _model: nn.Module, arguments: Any, named: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    embeds = named.get("inputs_embeds")
    return arguments, named if embeds is None else named | {"inputs_embeds": _to_compute_type(embeds)}


def _to_compute_type(embedded: Tensor) -> Tensor:
    device = embedded.device.type
    return embedded.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else embedded
