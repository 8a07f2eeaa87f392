"""Known-answer test of token classification: planted labels of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.training.loop.task import TINY, Answer, Examiner

MOST_LABELS = 4
"""Limit of planted labels: ten steps do not teach a narrow model the labels of a whole vocabulary."""


def tagger_answers(examiner: Examiner, batch: Microbatch, *, num_labels: int) -> Iterator[Answer]:
    """Yield whether planted labels are learned and belong to their tokens."""
    yield planted_answer(examiner, batch, num_labels)


def planted_answer(examiner: Examiner, batch: Microbatch, num_labels: int) -> Answer:
    """Train on planted tokens, one for each label, and compare correct with swapped labels on new texts.

    The value is 1 - loss of correct labels / loss of swapped ones: 0 if nothing was learned, at most 1.
    """
    tokens = batch.input_ids.unique()[-min(num_labels, MOST_LABELS) :]
    examiner.train(planted(batch, tokens, 0, torch.Generator().manual_seed(0)))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (
        examiner.loss(planted(new, tokens, shift, torch.Generator().manual_seed(1))) for shift in (0, 1)
    )
    return Answer("planted labels", "learned", 1 - right / max(wrong, TINY))


def planted(batch: Microbatch, tokens: Tensor, shift: int, draw: torch.Generator) -> Microbatch:
    """Write one of the tokens at every other scored position, with its number as label; score only these.

    `shift` changes every label.
    """
    chosen = torch.randint(len(tokens), batch.input_ids.shape, generator=draw)
    is_planted = (batch.labels != IGNORED) & (batch.position_ids % 2 == 1)
    return replace(
        batch,
        input_ids=torch.where(is_planted, tokens[chosen], batch.input_ids),
        labels=torch.where(is_planted, (chosen + shift) % len(tokens), IGNORED),
        num_targets=int(is_planted.sum()),
    )
