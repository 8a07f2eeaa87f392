"""Parameter groups: Muon for the matrices of the transformer blocks, AdamW for all other parameters."""

from __future__ import annotations

from typing import Any

from torch import nn

from neobert.config.schema import OptimizerConfig
from neobert.model.layers import EncoderBlock, SwiGLU
from neobert.optim.adamw import decay_groups
from neobert.optim.fused_rows import GATE_UP, QKV, QKV_BY_HEAD, WHOLE
from neobert.optim.muon import ADAMW, MUON, MuonWithAdamW


def build(config: OptimizerConfig, model: nn.Module) -> MuonWithAdamW:
    """Build Muon with AdamW for the trainable parameters. The first group has the rate `optimizer.lr`."""
    return MuonWithAdamW([*_adamw_groups(config, model), *_muon_groups(config, model)])


def matrices(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the trainable matrices of the transformer blocks by layout, for Muon.

    Matrices outside the blocks (embedding, decoder, classifier) are left to AdamW, which trains them better.
    """
    found: dict[str, list[nn.Parameter]] = {QKV: [], GATE_UP: [], WHOLE: []}
    for block in _blocks(model):
        layouts = {id(block.qkv.weight): QKV}
        if isinstance(block.ffn, SwiGLU):
            layouts[id(block.ffn.w12.weight)] = GATE_UP
        for parameter in block.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:
                found[layouts.get(id(parameter), WHOLE)].append(parameter)
    return found


def _blocks(model: nn.Module) -> list[EncoderBlock]:
    return [module for module in model.modules() if isinstance(module, EncoderBlock)]


def _adamw_groups(config: OptimizerConfig, model: nn.Module) -> list[dict[str, Any]]:
    taken = {id(each) for parameters in matrices(model).values() for each in parameters}
    shared = {"rule": ADAMW, "lr": config.lr, "betas": config.betas, "eps": config.eps}
    groups = []
    for group in decay_groups(model, config.weight_decay):
        left = [each for each in group["params"] if id(each) not in taken]
        if left:
            groups.append(shared | {"params": left, "weight_decay": group["weight_decay"]})
    return groups


def _muon_groups(config: OptimizerConfig, model: nn.Module) -> list[dict[str, Any]]:
    blocks = _blocks(model)
    shared = {
        "rule": MUON,
        "lr": config.lr if config.muon_lr is None else config.muon_lr,
        "weight_decay": config.weight_decay,
        "momentum": config.muon_momentum,
        "nesterov": config.muon_nesterov,
        "ns_steps": config.muon_ns_steps,
        "adjust_lr_fn": config.muon_adjust_lr_fn,
        "num_heads": blocks[0].num_heads if blocks else 1,
    }
    found = matrices(model)
    if config.muon_split == "heads":
        found[QKV_BY_HEAD] = found.pop(QKV)
    return [shared | {"params": each, "layout": layout} for layout, each in found.items() if each]
