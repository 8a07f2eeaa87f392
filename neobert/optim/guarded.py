"""Base class of optimizers that skip a bad step (NaN, infinity or a loss spike) on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Group = dict[str, Any]


class GuardedOptimizer(Optimizer):
    """Optimizer that skips its step if the tensor `found_inf` is above zero, without a device sync.

    A skipped step changes neither weights nor state. Subclasses implement `update` with `shrinkage`,
    `zero_if_bad`, `momentum_targets` and `momentum`, which have no effect in a bad step.
    """

    found_inf: Tensor | None = None
    # torch's name for an optimizer whose `step` reads `found_inf`: `step_unless` checks it.
    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, unless `found_inf` is above 0.

        Returns the loss that `closure` returned, or None without a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if parameters:
                self.update(group, parameters)
        return loss

    def update(self, group: Group, parameters: list[nn.Parameter]) -> None:
        """Update the parameters of a group and their optimizer state."""
        raise NotImplementedError

    def shrinkage(self, group: Group) -> float | Tensor:
        """Return the factor of decoupled weight decay, 1 - lr * weight_decay; 1 in a bad step."""
        factor = 1 - group["lr"] * group["weight_decay"]
        return factor if self.found_inf is None else torch.where(self.found_inf > 0, 1.0, factor)

    def zero_if_bad(self, update: Tensor) -> Tensor:
        """Return `update`, or zeros in a bad step."""
        return update if self.found_inf is None else torch.where(self.found_inf > 0, 0.0, update)

    def momentum_targets(self, momenta: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Return the tensors to interpolate the momenta towards: the gradients, or in a bad step the momenta.

        Interpolating a momentum towards itself leaves it bit-identical.
        """
        if self.found_inf is None:
            return gradients
        is_bad = self.found_inf > 0
        pairs = zip(momenta, gradients, strict=True)
        return [torch.where(is_bad, momentum, gradient) for momentum, gradient in pairs]

    def momentum(self, parameter: nn.Parameter, name: str) -> Tensor:
        """Return the momentum `name` of a parameter, initialized to zeros in the first step."""
        state = self.state[parameter]
        if not state:
            state[name] = torch.zeros_like(parameter)
        moment: Tensor = state[name]
        return moment
