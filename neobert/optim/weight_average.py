"""Exponential moving average (EMA) of the weights, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from neobert.parallel.sharding import own_part


class WeightAverage:
    """Moving average a(t) = d a(t-1) + (1 - d) w(t) of the trainable weights in fp32, sharded like them.

    It does not affect training. The decay d depends only on the step (see `decay_at`), so a resume is
    bit-exact.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._averages: dict[Tensor, Tensor] = {}
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self.restart()

    def restart(self) -> None:
        """Set the average to the current weights."""
        self._averages = {each: each.detach().clone() for each in self._parameters}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the current weights; `step` is counted from 1."""
        averages, weights = self._parts()
        torch._foreach_lerp_(averages, weights, 1 - decay_at(step, self._decay))

    def of(self, weight: Tensor) -> Tensor:
        """Return the average of a weight; a tensor that is not trained is returned unchanged."""
        return self._averages.get(weight, weight).detach()

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Swap the values of weights and averages inside the `with` block.

        Values are swapped in place, one tensor at a time, because compiled graphs and FSDP keep pointers to
        the weights and a second copy of the model might not fit. Do not start a save in the block.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for average, weight in zip(*self._parts(), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def _parts(self) -> tuple[list[Tensor], list[Tensor]]:
        averages = [own_part(self._averages[each]) for each in self._parameters]
        return averages, [own_part(each.detach()) for each in self._parameters]


def decay_at(step: int, decay: float) -> float:
    """Return the decay of a step: min(decay, (1 + step) / (10 + step)).

    The lower decay of early steps is that of TensorFlow's ExponentialMovingAverage: the average forgets the
    initial weights.
    """
    return min(decay, (1 + step) / (10 + step))
