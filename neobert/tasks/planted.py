"""Known-answer test for tasks with labels: planted labels are learned at their own positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.training.loop.task import TINY, ProbeResult, TaskProber

Plant = Callable[[Microbatch, int, torch.Generator], Microbatch]
"""Function of a microbatch, a shift and a generator that returns the microbatch with planted tokens and their
labels; a shift of 1 gives each token another label."""


def train_on_planted(name: str, examiner: TaskProber, batch: Microbatch, plant: Plant) -> ProbeResult:
    """Train on planted labels, and compare the loss of correct and of shifted labels on new texts.

    The value is 1 - loss of correct labels / loss of others: 0 if nothing was learned, at most 1.
    """
    examiner.train(plant(batch, 0, torch.Generator().manual_seed(0)))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (examiner.loss(plant(new, shift, torch.Generator().manual_seed(1))) for shift in (0, 1))
    return ProbeResult(name, "learned", 1 - right / max(wrong, TINY))
