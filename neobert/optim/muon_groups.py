"""Parameter groups: Muon for the matrices of the transformer blocks, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from neobert.config.schema import OptimizerConfig
from neobert.errors import ProjectError
from neobert.families.linear import Layout
from neobert.optim.adamw import decay_groups
from neobert.optim.fused_rows import BY_HEAD
from neobert.optim.muon import ADAMW, MUON, MuonWithAdamW

Groups = Mapping[Layout, list[nn.Parameter]]


def build(
    config: OptimizerConfig, model: nn.Module, layouts: Callable[[], Mapping[str, Layout]]
) -> MuonWithAdamW:
    """Build Muon with AdamW for the trainable parameters. The first group has the rate `optimizer.lr`.

    `layouts` returns the layouts of the blocks' matrices by name. Raises `ProjectError` MOD005 for none.
    """
    declared = layouts()
    if not declared:
        message = f"{config.name}: no layouts are declared for the matrices of a {type(model).__name__}"
        raise ProjectError("MOD005", message, "set optimizer.name to adamw", "optimizer.name")
    found = group_matrices_by_layout(model, declared)
    return MuonWithAdamW([*_adamw_groups(config, model, found), *_muon_groups(config, found)])


def group_matrices_by_layout(
    model: nn.Module, layouts: Mapping[str, Layout]
) -> dict[Layout, list[nn.Parameter]]:
    """Return the matrices with a layout, by layout in alphabetical order.

    Matrices outside the blocks (embedding, decoder, classifier) are left to AdamW, which trains them better.
    """
    found: dict[Layout, list[nn.Parameter]] = {layout: [] for layout in sorted({*layouts.values()})}
    for name, parameter in model.named_parameters():
        if name in layouts:
            found[layouts[name]].append(parameter)
    return found


def _adamw_groups(config: OptimizerConfig, model: nn.Module, matrices: Groups) -> list[dict[str, Any]]:
    taken = {id(each) for parameters in matrices.values() for each in parameters}
    shared = {"rule": ADAMW, "lr": config.lr, "betas": config.betas, "eps": config.eps}
    groups = []
    for group in decay_groups(model, config.weight_decay):
        left = [each for each in group["params"] if id(each) not in taken]
        if left:
            groups.append(shared | {"params": left, "weight_decay": group["weight_decay"]})
    return groups


def _muon_groups(config: OptimizerConfig, matrices: Groups) -> list[dict[str, Any]]:
    shared = {
        "rule": MUON,
        "lr": config.lr if config.muon_lr is None else config.muon_lr,
        "weight_decay": config.weight_decay,
        "momentum": config.muon_momentum,
        "nesterov": config.muon_nesterov,
        "ns_steps": config.muon_ns_steps,
        "adjust_lr_fn": config.muon_adjust_lr_fn,
    }
    names = BY_HEAD if config.muon_split == "heads" else {}
    return [
        shared | {"params": each, "layout": names.get(name, name), "num_heads": num_heads}
        for (name, num_heads), each in matrices.items()
    ]
