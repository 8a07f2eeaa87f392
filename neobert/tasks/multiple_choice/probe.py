"""Known-answer test of multiple choice: planted choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout, texts_of_example
from neobert.training.loop.task import TINY, Answer, Examiner


def choice_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted choices are learned and belong to their rows."""
    yield planted_answer(examiner, batch)


def planted_answer(examiner: Examiner, batch: Microbatch) -> Answer:
    """Train on rows of which one choice has a planted token, and compare its index with others in new rows.

    The value is 1 - loss of correct indices / loss of others: 0 if nothing was learned, at most 1.
    """
    examiner.train(planted(batch, 0, torch.Generator().manual_seed(0)))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (examiner.loss(planted(new, shift, torch.Generator().manual_seed(1))) for shift in (0, 1))
    return Answer("planted choices", "learned", 1 - right / max(wrong, TINY))


def planted(batch: Microbatch, shift: int, draw: torch.Generator) -> Microbatch:
    """Write the token with the largest id at every other place of one choice of each row: the right one.

    With `shift`, the label is the choice after it. All rows have the same number of choices.
    """
    layout, most = Layout.of(batch), texts_of_example(batch)
    num_rows = batch.num_segments // most
    right = torch.randint(most, (num_rows,), generator=draw)
    is_planted = torch.zeros(batch.num_segments, dtype=torch.bool)
    is_planted[torch.arange(num_rows) * most + right] = True
    is_here = layout.is_token & is_planted[layout.document] & (layout.place % 2 == 0)
    ids = torch.where(is_here.view_as(batch.input_ids), batch.input_ids.max(), batch.input_ids)
    labels = torch.full_like(batch.labels, IGNORED)
    labels[torch.arange(num_rows) * most] = (right + shift) % most
    return replace(batch, input_ids=ids, labels=labels, num_targets=num_rows)
