"""Lion (arXiv:2302.06675): steps of one size in the direction of the momentum's sign, from one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neobert.config.schema import OptimizerConfig
from neobert.optim.adamw import decay_groups
from neobert.parallel import gradients_of, own_part


class Lion(Optimizer):
    """Lion with decoupled weight decay, element by element: shards need no gathering."""

    found_inf: Tensor | None = None
    # torch's name for an optimizer whose `step` reads `found_inf`: `step_unless` asks for it.
    _step_supports_amp_scaling = True

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; none, nor any state, where `found_inf` is above 0."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if parameters:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        weights = [own_part(each) for each in parameters]
        momenta = [own_part(self._momentum(each)) for each in parameters]
        gradients = [own_part(each) for each in gradients_of(parameters)]
        # The direction leans on the newest gradient more (1 - first beta) than the momentum that is kept.
        directions: tuple[Tensor, ...] | list[Tensor] = torch._foreach_lerp(
            momenta, gradients, 1 - group["betas"][0]
        )
        torch._foreach_sign_(directions)
        shrink: float | Tensor = 1 - group["lr"] * group["weight_decay"]
        if self.found_inf is not None:
            is_bad = self.found_inf > 0
            shrink = torch.where(is_bad, 1.0, shrink)
            directions = [torch.where(is_bad, 0.0, each) for each in directions]
            # A momentum that moves towards itself keeps its value, to the last bit.
            pairs = zip(momenta, gradients, strict=True)
            gradients = [torch.where(is_bad, momentum, gradient) for momentum, gradient in pairs]
        torch._foreach_mul_(weights, shrink)
        torch._foreach_add_(weights, directions, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, gradients, 1 - group["betas"][1])

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        return state["exp_avg"]


def build(config: OptimizerConfig, model: nn.Module) -> Lion:
    """Build Lion over the parameters that train; vectors and embeddings do not decay."""
    return Lion(decay_groups(model, config.weight_decay), lr=config.lr, betas=config.betas)
