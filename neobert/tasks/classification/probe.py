"""Correctness probes of a classifier: attention, packed against padded logits, and planted labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, filler_of
from neobert.tasks.probes import TINY, attention_answers, in_rows, segments_of
from neobert.training.loop.task import Answer, Examiner

MOST_CLASSES = 4
"""Limit of planted classes: each needs its own token and several texts that contain the token."""


def classifier_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield the results: attention within texts, equal logits of padded and packed texts, planted labels."""
    yield from attention_answers(examiner, batch, token_classes=None)
    if batch.attention_mask is None:
        yield layout_answer(examiner, batch)
    yield planted_answer(examiner, batch)


def layout_answer(examiner: Examiner, batch: Microbatch) -> Answer:
    """Compare the logits of the same texts in a packed run and in padded rows.

    The value is the largest difference, relative to the root mean square of the packed logits.
    """
    rows = in_rows(batch)
    packed = examiner.score(batch).logits[: rows.num_segments]
    difference = (examiner.score(rows).logits - packed).abs().max()
    size = packed.square().mean().sqrt()
    return Answer("texts in padded rows", "close", float(difference / size.clamp(min=TINY)))


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
    segment, _ = segments_of(batch)
    is_planted = batch.position_ids % 2 == 1
    labels = torch.full_like(batch.labels, filler_of(batch.labels.numpy()))
    labels[:count] = values[chosen]
    ids = torch.where(is_planted, tokens[chosen][segment], batch.input_ids)
    return replace(batch, input_ids=ids, labels=labels, num_targets=count)
