"""Lion optimizer (arXiv:2302.06675), which updates by the sign of an interpolated momentum."""

from __future__ import annotations

import torch
from torch import nn

from neobert.config.schema import OptimizerConfig
from neobert.optim.adamw import decay_groups
from neobert.optim.guarded import Group, GuardedOptimizer
from neobert.parallel import list_gradients, local_shard


class Lion(GuardedOptimizer):
    """Lion with decoupled weight decay. The update is elementwise, so sharded parameters are not gathered."""

    def __init__(self, groups: list[Group], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    def update(self, group: Group, parameters: list[nn.Parameter]) -> None:
        """Update the parameters of a group and their momenta."""
        weights = [local_shard(each) for each in parameters]
        momenta = [local_shard(self.momentum(each, "exp_avg")) for each in parameters]
        gradients = [local_shard(each) for each in list_gradients(parameters)]
        # The direction weights the newest gradient more (1 - first beta) than the stored momentum does.
        directions = torch._foreach_lerp(momenta, gradients, 1 - group["betas"][0])
        torch._foreach_sign_(directions)
        torch._foreach_mul_(weights, self.shrinkage(group))
        torch._foreach_add_(weights, [self.zero_if_bad(each) for each in directions], alpha=-group["lr"])
        torch._foreach_lerp_(momenta, self.momentum_targets(momenta, gradients), 1 - group["betas"][1])


def build(config: OptimizerConfig, model: nn.Module) -> Lion:
    """Build Lion for the trainable parameters; vectors and embeddings have no weight decay."""
    return Lion(decay_groups(model, config.weight_decay), lr=config.lr, betas=config.betas)
