"""Known-answer test of a classifier: planted labels of texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, filler_of
from neobert.probes.layout import Layout
from neobert.tasks.planted import learned
from neobert.training.loop.task import Answer, Examiner

MAX_CLASSES = 4
"""Limit of planted classes: each needs its own token and several texts that contain the token."""


def classifier_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted labels are learned and belong to their texts."""
    values = planted_values(examiner.score(batch).logits, batch.labels)
    tokens = batch.input_ids.unique()[-len(values) :]
    values = values[: len(tokens)]
    yield learned("planted labels", examiner, batch, partial(planted, tokens=tokens, values=values))


def planted_values(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the labels to plant: classes, or two scores around the model's current predictions."""
    if labels.is_floating_point():
        return logits.mean().cpu() + torch.tensor([-1.0, 1.0])
    return torch.arange(min(logits.shape[1], MAX_CLASSES))


def planted(
    batch: Microbatch, shift: int, draw: torch.Generator, *, tokens: Tensor, values: Tensor
) -> Microbatch:
    """Write a token at every other position of each text, and label the text with that token's value.

    Values are distributed evenly over the texts in random order, so that no order of labels fits by chance.
    `shift` swaps them.
    """
    count = batch.num_segments
    chosen = (torch.arange(count) % len(values))[torch.randperm(count, generator=draw)]
    segment = Layout.of(batch).document.view_as(batch.input_ids)
    is_planted = batch.position_ids % 2 == 1
    labels = torch.full_like(batch.labels, filler_of(batch.labels.numpy()))
    labels[:count] = values.roll(shift)[chosen]
    ids = torch.where(is_planted, tokens[chosen][segment], batch.input_ids)
    return replace(batch, input_ids=ids, labels=labels, num_targets=count)
