"""Losses that leap to many times the mean. Judged on the device, read where it is waited for anyway."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Of each loss in the mean: about the last fifty steps count.
WEIGHT = 0.04


class Spike(NamedTuple):
    """A step whose loss leapt, and the mean before it, in nats a target."""

    step: int
    loss: float
    mean: float


class Spikes:
    """The mean loss of the steps so far, and the first leap since somebody asked."""

    def __init__(self, device: torch.device, factor: float | None) -> None:
        """No loss is a leap where `factor` is None, nor at the first step of a run."""
        self._factor = float("inf") if factor is None else factor
        self._mean = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._first = torch.zeros(3, dtype=torch.float64, device=device)

    def judge(self, step: int, loss: Tensor) -> Tensor:
        """Return whether a step's loss leapt; one that did, or is no number, leaves the mean as it was.

        So does a loss of 0, which is that of a step without targets: a mean over nothing.
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
        """Compare with the mean of an earlier session from here on; one of 0 says nothing."""
        self._mean.fill_(mean if mean > 0 else math.nan)

    def take(self) -> tuple[Spike | None, float | None]:
        """Return the first leap since the last call, and the mean, if there is one. Waits for the device."""
        step, loss, mean_before, mean = torch.cat([self._first, self._mean[None]]).tolist()
        told = None if math.isnan(mean) else mean
        if step == 0:
            return None, told
        self._first = torch.zeros_like(self._first)
        return Spike(int(step), loss, mean_before), told
