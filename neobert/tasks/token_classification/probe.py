"""Known-answer test of token classification: planted labels of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.training.loop.task import TINY, Answer, Examiner


def tagger_answers(examiner: Examiner, batch: Microbatch, *, num_labels: int) -> Iterator[Answer]:
    """Yield whether planted labels are learned and belong to their tokens."""
    yield planted_answer(examiner, batch, num_labels)


def planted_answer(examiner: Examiner, batch: Microbatch, num_labels: int) -> Answer:
    """Train on tokens labelled by their own id, and compare correct with swapped labels on new texts.

    The value is 1 - loss of correct labels / loss of swapped ones: 0 if nothing was learned, at most 1.
    """
    examiner.train(planted(batch, num_labels, 0))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (examiner.loss(planted(new, num_labels, shift)) for shift in (0, 1))
    return Answer("planted labels", "learned", 1 - right / max(wrong, TINY))


def planted(batch: Microbatch, num_labels: int, shift: int) -> Microbatch:
    """Label every scored token by its id, modulo the number of labels; `shift` changes every label."""
    labels = (batch.input_ids + shift) % num_labels
    return replace(batch, labels=torch.where(batch.labels == IGNORED, IGNORED, labels))
