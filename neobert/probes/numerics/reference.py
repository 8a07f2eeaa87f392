"""The model as plain formulas, document by document, in any precision: the reference of the parity probe.

It shares no line with the model's modules. In fp64 it is the truth; in the run's own precision it is
what that precision costs where nothing is packed and no kernel is clever.

Shapes: T tokens, M decoded rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from neobert.kernels import reference
from neobert.model import NeoBERTConfig
from neobert.probes.numerics.leak_batch import LeakBatch

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Answer:
    """Logits [M, V] of some rows, and the gradient of their summed cross-entropy by parameter, in fp64."""

    logits: Tensor
    gradients: dict[str, Tensor]


def answer(
    weights: Weights, config: NeoBERTConfig, batch: LeakBatch, labels: Tensor, dtype: torch.dtype
) -> Answer:
    """Compute every document by itself in `dtype`. The rows are those that have a label."""
    held = {name: weight.detach().to(dtype).requires_grad_() for name, weight in weights.items()}
    tokens = torch.cat(batch.places)
    hidden = encode(held, config, batch.input_ids[tokens], batch.lengths)
    targets = labels.flatten()[tokens]
    rows = (targets >= 0).nonzero().squeeze(1)
    logits = hidden[rows] @ held["decoder.weight"].t() + held.get("decoder.bias", 0)
    wide = logits if dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(wide, targets[rows], reduction="sum")
    gradients = torch.autograd.grad(loss, list(held.values()))
    return Answer(
        logits.detach().double(), {name: g.double() for name, g in zip(held, gradients, strict=True)}
    )


def encode(weights: Weights, config: NeoBERTConfig, ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Return the normed hidden states [T, D] of consecutive documents."""
    positions = torch.cat([torch.arange(length, device=ids.device) for length in lengths])
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    x = weights["model.encoder.weight"][ids]
    if not config.rope:
        x = x + weights["model.positional_embedding.weight"][positions]
        positions = torch.zeros_like(positions)  # a rotation by nothing
    for number in range(config.num_hidden_layers):
        block = _under(weights, f"model.transformer_encoder.{number}.")
        qkv = _norm(x, _under(block, "attention_norm."), config) @ block["qkv.weight"].t()
        attended = reference.attention(qkv, positions, bounds, config.num_attention_heads, config.rope_theta)
        x = x + attended @ block["wo.weight"].t()
        x = x + _feed_forward(_norm(x, _under(block, "ffn_norm."), config), _under(block, "ffn."), config)
    return _norm(x, _under(weights, "model.layer_norm."), config)


def _under(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def _norm(x: Tensor, weights: Weights, config: NeoBERTConfig) -> Tensor:
    if config.rms_norm:
        return reference.rms_norm(x, weights["weight"], config.norm_eps)
    return F.layer_norm(x, x.shape[-1:], weights["weight"], weights["bias"], config.norm_eps)


def _feed_forward(x: Tensor, weights: Weights, config: NeoBERTConfig) -> Tensor:
    if config.hidden_act == "swiglu":
        return reference.swiglu(x @ weights["w12.weight"].t()) @ weights["w3.weight"].t()
    return F.gelu(x @ weights["0.weight"].t()) @ weights["2.weight"].t()
