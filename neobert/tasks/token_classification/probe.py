"""Known-answer test of token classification: planted labels of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.tasks.planted import learned
from neobert.training.loop.task import Answer, Examiner

MAX_LABELS = 4
"""Limit of planted labels: ten steps do not teach a narrow model the labels of a whole vocabulary."""


def tagger_answers(examiner: Examiner, batch: Microbatch, *, num_labels: int) -> Iterator[Answer]:
    """Yield whether planted labels are learned and belong to their tokens."""
    tokens = batch.input_ids.unique()[-min(num_labels, MAX_LABELS) :]
    yield learned("planted labels", examiner, batch, partial(planted, tokens=tokens))


def planted(batch: Microbatch, shift: int, draw: torch.Generator, *, tokens: Tensor) -> Microbatch:
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
