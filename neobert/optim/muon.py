"""Muon for the matrices of the transformer blocks and AdamW for all other parameters, as one optimizer.

One optimizer needs only one scheduler and one saved state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from neobert.families.linear import WHOLE
from neobert.optim.fused_rows import join_rows, split_rows
from neobert.optim.guarded import Group, GuardedOptimizer
from neobert.optim.newton_schulz import iteration_dtype, learning_rate_factor, orthogonalize
from neobert.parallel import full_tensor, list_gradients, local_shard, shard_like

MUON, ADAMW = "muon", "adamw"

DEFAULTS: Group = {
    "rule": ADAMW,
    "lr": 1e-3,
    "weight_decay": 0.0,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "fused": True,
    "momentum": 0.95,
    "nesterov": True,
    "ns_steps": 5,
    "adjust_lr_fn": "match_rms_adamw",
    "layout": WHOLE,
    "num_heads": 1,
}


class MuonWithAdamW(GuardedOptimizer):
    """Optimizer with the update of `torch.optim.Muon` for groups with rule "muon", else fused AdamW.

    A Muon group has the layout of its weights (`layout`, `num_heads`), so that matrices stacked in one weight
    are orthogonalized separately. Weights of equal shape are orthogonalized in one batch. For sharded
    weights, the update directions are gathered in the iteration's dtype, one matrix at a time, and every rank
    computes the full update.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        super().__init__(groups, dict(DEFAULTS))
        for group in self.param_groups:
            if group["rule"] == MUON and any(each.ndim != 2 for each in group["params"]):
                raise ValueError("Muon groups may only contain 2-dimensional parameters")

    def update(self, group: Group, parameters: list[nn.Parameter]) -> None:
        """Update the parameters of a group and their state by Muon or AdamW, depending on its rule."""
        update = self._update_by_muon if group["rule"] == MUON else self._update_by_adamw
        update(group, parameters)

    def _update_by_adamw(self, group: Group, parameters: list[nn.Parameter]) -> None:
        states = [self._adam_moments(each) for each in parameters]
        adamw(
            [*parameters],
            list_gradients(parameters),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _adam_moments(self, parameter: nn.Parameter) -> Group:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def _update_by_muon(self, group: Group, parameters: list[nn.Parameter]) -> None:
        directions = self._update_directions(group, parameters)
        torch._foreach_mul_([local_shard(each) for each in parameters], self.shrinkage(group))
        for alike, updates, factor in _orthogonal_updates(group, parameters, directions):
            for parameter, update in zip(alike, self.zero_if_bad(updates), strict=True):
                part = local_shard(shard_like(update, parameter))
                local_shard(parameter).add_(part, alpha=-group["lr"] * factor)

    def _update_directions(self, group: Group, parameters: list[nn.Parameter]) -> Sequence[Tensor]:
        """Update the momenta and return the update directions (with Nesterov if set), as local shards."""
        weight = group["momentum"]
        momenta = [local_shard(self.momentum(each, "momentum_buffer")) for each in parameters]
        gradients = self.momentum_targets(momenta, [local_shard(each) for each in list_gradients(parameters)])
        torch._foreach_lerp_(momenta, gradients, 1 - weight)
        return torch._foreach_lerp(gradients, momenta, weight) if group["nesterov"] else momenta


def _orthogonal_updates(
    group: Group, parameters: Sequence[Tensor], directions: Sequence[Tensor]
) -> Iterator[tuple[Sequence[Tensor], Tensor, float]]:
    """Yield for each batch: its K weights, their full updates [K, R, C], and the learning-rate factor."""
    layout, num_heads = group["layout"], group["num_heads"]
    dtype = iteration_dtype(directions[0].device)
    batches: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for number, (parameter, direction) in enumerate(zip(parameters, directions, strict=True)):
        # Gathered in one batch, sharded matrices would all be in memory in full on every rank.
        batch = number if isinstance(parameter, DTensor) else parameter.shape
        batches[batch].append((parameter, direction))
    for pairs in batches.values():
        shape = pairs[0][0].shape
        # One stack and few operators for all: a small model would wait for many kernel launches.
        wholes = directions[0].new_empty((len(pairs), *shape), dtype=dtype)
        alike = [parameter for parameter, _ in pairs]
        torch._foreach_copy_(list(wholes), [_gather_full_tensor(each, like) for like, each in pairs])
        parts = split_rows(wholes, layout, num_heads)
        orthogonal = orthogonalize(parts.flatten(0, 1), group["ns_steps"]).unflatten(0, parts.shape[:2])
        factor = learning_rate_factor(group["adjust_lr_fn"], *parts.shape[-2:])
        yield alike, join_rows(orthogonal, layout, num_heads), factor


def _gather_full_tensor(part: Tensor, parameter: Tensor) -> Tensor:
    """Gather a local shard that is sharded like `parameter` to the full tensor. All ranks must call it."""
    if not isinstance(parameter, DTensor):
        return part
    part = part.to(iteration_dtype(part.device))  # bf16 on a GPU: half the bytes to send
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return full_tensor(
        DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
    )
