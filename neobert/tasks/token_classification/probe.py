"""Correctness probes of token classification: attention, packed against padded logits, planted labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.tasks.probes import TINY, attention_answers, in_rows
from neobert.training.loop.task import Answer, Examiner


def tagger_answers(examiner: Examiner, batch: Microbatch, *, num_labels: int) -> Iterator[Answer]:
    """Yield the results: attention within texts, equal logits of padded and packed texts, planted labels."""
    yield from attention_answers(examiner, batch, token_classes=num_labels)
    if batch.attention_mask is None:
        yield layout_answer(examiner, batch)
    yield planted_answer(examiner, batch, num_labels)


def layout_answer(examiner: Examiner, batch: Microbatch) -> Answer:
    """Compare the logits of the same tokens in a packed run and in padded rows.

    The value is the largest difference, relative to the root mean square of the packed logits.
    """
    rows = in_rows(batch)
    packed = examiner.score(batch).logits[: rows.num_tokens]
    padded = examiner.score(rows).logits
    assert rows.attention_mask is not None
    difference = (padded[rows.attention_mask.to(padded.device)] - packed).abs().max()
    return Answer(
        "texts in padded rows", "close", float(difference / packed.square().mean().sqrt().clamp(min=TINY))
    )


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
