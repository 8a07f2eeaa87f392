"""Bit-exact comparison of the model's replicas at every checkpoint.

Gradients are added up before every update, so replicas that were equal stay equal. A bit that flipped in the
memory of one device, or an update that was computed wrong there, is seen nowhere else: losses are means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from neobert.training.guards.warnings import warn
from neobert.training.state.trainer import Trainer

DIVERGING = "diverging_replicas"


def compare_replicas(trainer: Trainer) -> None:
    """Warn of ranks whose weights differ from the others. All ranks call it."""
    world = trainer.world
    if world.size == 1 or world.is_sharded:
        return
    gathered = world.gather(str(int(checksum(trainer.task.model))).encode())
    if world.is_main and (ranks := differing([int(told) for told in gathered])):
        named = ", ".join(map(str, ranks))
        message = f"DST005 the weights of ranks {named} are not the same; see what their GPUs report"
        warn(trainer, DIVERGING, message)


def checksum(module: nn.Module) -> Tensor:
    """Add up the bits of all parameters, as fp32 has them: one that flips changes the sum."""
    sums = [parameter.detach().view(torch.int32).sum(dtype=torch.int64) for parameter in module.parameters()]
    places = torch.arange(1, len(sums) + 1, device=sums[0].device)
    return (torch.stack(sums) * places).sum()


def differing(sums: Sequence[int]) -> list[int]:
    """Name the ranks beside the majority, or all of them where there is none."""
    usual, count = Counter(sums).most_common(1)[0]
    has_majority = 2 * count > len(sums)
    return [rank for rank, each in enumerate(sums) if each != usual or not has_majority]
