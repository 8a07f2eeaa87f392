"""AdamW with decoupled weight decay on the matrices (arXiv:1711.05101), and Adam with an L2 penalty."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Adam, AdamW

from neobert.config.schema import OptimizerConfig


def build(config: OptimizerConfig, model: nn.Module) -> Adam:
    """Build torch's fused AdamW or Adam for the trainable parameters."""
    kind = AdamW if config.name == "adamw" else Adam
    groups = decay_groups(model, config.weight_decay)
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into a group with weight decay and one without.

    Vectors (norms, biases) and embeddings, including a tied decoder, have no weight decay. Empty groups are
    left out.
    """
    spared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_spared = parameter.ndim < 2 or id(parameter) in spared
            (kept if is_spared else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
