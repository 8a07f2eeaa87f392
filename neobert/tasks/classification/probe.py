"""Known-answer test of a classifier: planted labels of texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, filler_of
from neobert.probes.layout import Layout
from neobert.training.loop.task import TINY, Answer, Examiner

MOST_CLASSES = 4
"""Limit of planted classes: each needs its own token and several texts that contain the token."""


def classifier_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted labels are learned and belong to their texts."""
    yield planted_answer(examiner, batch)


def planted_answer(examiner: Examiner, batch: Microbatch) -> Answer:
    """Train on texts labelled by a planted token, and compare correct with swapped labels on new texts.

    The value is 1 - loss of correct labels / loss of swapped labels: 0 if nothing was learned, at most 1.
    """
    logits = examiner.score(batch).logits
    values = planted_values(logits, batch.labels)
    tokens = batch.input_ids.unique()[-len(values) :]
    values = values[: len(tokens)]
    examiner.train(planted(batch, tokens, values, torch.Generator().manual_seed(0)))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (
        examiner.loss(planted(new, tokens, each, torch.Generator().manual_seed(1)))
        for each in (values, values.roll(1))
    )
    return Answer("planted labels", "learned", 1 - right / max(wrong, TINY))


def planted_values(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the labels to plant: classes, or two scores around the model's current predictions."""
    if labels.is_floating_point():
        return logits.mean().cpu() + torch.tensor([-1.0, 1.0])
    return torch.arange(min(logits.shape[1], MOST_CLASSES))


def planted(batch: Microbatch, tokens: Tensor, values: Tensor, draw: torch.Generator) -> Microbatch:
    """Write a token at every other position of each text, and label the text with that token's value.

    Values are distributed evenly over the texts in random order, so that no order of labels fits by chance.
    """
    count = batch.num_segments
    chosen = (torch.arange(count) % len(values))[torch.randperm(count, generator=draw)]
    segment = Layout.of(batch).document.view_as(batch.input_ids)
    is_planted = batch.position_ids % 2 == 1
    labels = torch.full_like(batch.labels, filler_of(batch.labels.numpy()))
    labels[:count] = values[chosen]
    ids = torch.where(is_planted, tokens[chosen][segment], batch.input_ids)
    return replace(batch, input_ids=ids, labels=labels, num_targets=count)
