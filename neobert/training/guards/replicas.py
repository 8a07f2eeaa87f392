"""Comparison of model replicas, which ends a run whose replicas differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from neobert.errors import EXIT_TRAINING_FAILED, ProjectError
from neobert.parallel import local_shard
from neobert.training.state.trainer import Trainer


def compare_replicas(trainer: Trainer) -> None:
    """Raise `ProjectError` DST005 if ranks with the same weights differ in any bit. All ranks call it.

    Gradients are all-reduced before every update, so replicas stay equal. A flipped bit in the memory of one
    GPU, or a wrong update, is not visible in the loss, which is a mean over ranks.
    """
    world = trainer.world
    if world.num_shards == world.size:
        return
    gathered = world.gather(str(int(checksum(trainer.task.model))).encode())
    ranks = world.on_main(lambda: differing_ranks([int(each) for each in gathered], world.num_shards))
    if ranks:
        named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        raise ProjectError(
            code="DST005",
            message=f"replicas of the model differ ({named}), and were not saved",
            hint="check these GPUs for memory errors (nvidia-smi -q -d ECC), then resume: earlier "
            "checkpoints are not affected",
            place=f"step {trainer.progress.step}",
            exit_code=EXIT_TRAINING_FAILED,
        )


def checksum(module: nn.Module) -> Tensor:
    """Return an int64 checksum of the bits of this rank's fp32 parameters; any flipped bit changes it."""
    parts = (local_shard(parameter.detach()) for parameter in module.parameters())
    sums = [each.view(torch.int32).sum(dtype=torch.int64) for each in parts]
    places = torch.arange(1, len(sums) + 1, device=sums[0].device)
    return (torch.stack(sums) * places).sum()


def differing_ranks(sums: Sequence[int], num_shards: int) -> list[int]:
    """Return the ranks whose checksum differs from the majority of the ranks with the same shard.

    If there is no majority, all ranks with that shard are returned. Rank r has shard r % num_shards.
    """
    found = []
    for shard in range(num_shards):
        of_shard = sums[shard::num_shards]
        usual, count = Counter(of_shard).most_common(1)[0]
        has_majority = 2 * count > len(of_shard)
        found += [
            shard + number * num_shards
            for number, each in enumerate(of_shard)
            if each != usual or not has_majority
        ]
    return sorted(found)
