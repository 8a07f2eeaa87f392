"""Loss spikes: losses of many times the running mean, detected on the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Of each loss in the mean: about the last fifty steps count.
WEIGHT = 0.04


class Spike(NamedTuple):
    """A step with a loss spike, and the mean loss before it, in nats per target."""

    step: int
    loss: float
    mean: float


class Spikes:
    """The running mean loss, and the first spike since the last call of `take`."""

    def __init__(self, device: torch.device, factor: float | None) -> None:
        """`factor`: ratio of loss to mean from which on it is a spike; None: never."""
        self._factor = float("inf") if factor is None else factor
        self._mean = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._first = torch.zeros(3, dtype=torch.float64, device=device)

    def judge(self, step: int, loss: Tensor) -> Tensor:
        """Return whether a step's loss is a spike. A spike, NaN or infinity does not change the mean.

        Nor does a loss of 0, which a step without targets has.
        """
        loss = loss.to(torch.float64)
        is_told = torch.isfinite(loss) & (loss > 0)
        is_spike = is_told & (loss > self._factor * self._mean)
        found = torch.stack([torch.full_like(loss, step), loss, self._mean])
        self._first = torch.where(is_spike & (self._first[0] == 0), found, self._first)
        moved = torch.where(self._mean.isnan(), loss, self._mean + WEIGHT * (loss - self._mean))
        self._mean = torch.where(is_told & ~is_spike, moved, self._mean)
        return is_spike

    def resume(self, mean: float) -> None:
        """Continue with the mean of an earlier session; 0 is no mean."""
        self._mean.fill_(mean if mean > 0 else math.nan)

    def take(self) -> tuple[Spike | None, float | None]:
        """Return the first spike since the last call, and the mean; each may be None. Waits for the GPU."""
        step, loss, mean_before, mean = torch.cat([self._first, self._mean[None]]).tolist()
        told = None if math.isnan(mean) else mean
        if step == 0:
            return None, told
        self._first = torch.zeros_like(self._first)
        return Spike(int(step), loss, mean_before), told
