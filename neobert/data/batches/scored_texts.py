"""Examples of a microbatch whose documents have scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch


def scores_of(batch: Microbatch) -> Tensor:
    """Return the score of each text, fp32 [texts]; NaN without one."""
    assert batch.scores is not None
    return batch.scores[: batch.num_segments]


def without_scored(batch: Microbatch, *, keeps_taught: bool = False) -> Microbatch:
    """Return a microbatch whose scored examples are padding; those of a teacher may be kept, to be ranked."""
    if batch.scores is None:
        return batch
    first, scores = first_texts(batch), scores_of(batch)
    number = torch.bincount(first[~scores.isnan()], minlength=len(first))[first]
    groups = batch.groups.clone()
    groups[: len(first)][(number == 1) if keeps_taught else (number > 0)] = -1
    return replace(batch, groups=groups)


def first_texts(batch: Microbatch) -> Tensor:
    """Return the place of the first text of the example of each text, int64 [texts]."""
    groups = batch.groups[: batch.num_segments]
    return torch.searchsorted(groups, groups)
