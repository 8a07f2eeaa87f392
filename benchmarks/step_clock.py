"""Seconds of the optimizer steps of a run: one clock, for this trainer and for the peer."""

from __future__ import annotations

import time

import torch

UNTIMED = 4
"""First steps, in which a side may compile or start its data loader: they count as the others' mean."""


class StepClock:
    """Times all steps of a run but the first `UNTIMED`.

    Logging between the steps counts; compilation, evaluation, and what comes after the last step do not.
    """

    def __init__(self, num_steps: int) -> None:
        if num_steps <= UNTIMED:
            raise ValueError(f"a run of {num_steps} steps cannot be timed: more than {UNTIMED} are needed")
        self._num_steps = num_steps
        self._started_s = self._ended_s = 0.0

    def ended(self, step: int) -> None:
        """Note that the optimizer step with this number, from 1, has ended."""
        if step == UNTIMED:
            self._started_s = _now()
        if step == self._num_steps:
            self._ended_s = _now()

    @property
    def seconds(self) -> float:
        """Return the seconds of all steps."""
        return (self._ended_s - self._started_s) * self._num_steps / (self._num_steps - UNTIMED)


def _now() -> float:
    """Return the time once the device has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
