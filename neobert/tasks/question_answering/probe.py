"""Known-answer test of question answering: planted answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout
from neobert.tasks.question_answering.examples import label_of
from neobert.training.loop.task import TINY, Answer, Examiner


def span_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted answers are learned and belong to their windows."""
    yield planted_answer(examiner, batch)


def planted_answer(examiner: Examiner, batch: Microbatch) -> Answer:
    """Train on windows whose answer is one token, and compare its place with other places in new windows.

    The value is 1 - loss of correct places / loss of others: 0 if nothing was learned, at most 1.
    """
    examiner.train(planted(batch, 0, torch.Generator().manual_seed(0)))
    new = replace(batch, input_ids=batch.input_ids.flatten().flip(0).reshape(batch.input_ids.shape))
    right, wrong = (examiner.loss(planted(new, shift, torch.Generator().manual_seed(1))) for shift in (0, 1))
    return Answer("planted answers", "learned", 1 - right / max(wrong, TINY))


def planted(batch: Microbatch, shift: int, draw: torch.Generator) -> Microbatch:
    """Write the token with the largest id at one place of each window, and label that place as the answer.

    With `shift`, the label is that of the window before, counted in the window.
    """
    layout = Layout.of(batch)
    lengths = torch.stack([each.new_tensor(len(each)) for each in layout.documents()])
    places = (torch.rand(len(lengths), generator=draw) * lengths).long()
    is_planted = layout.is_token & (layout.place == places[layout.document])
    ids = torch.where(is_planted.view_as(batch.input_ids), batch.input_ids.max(), batch.input_ids)
    labelled = (places + shift * (1 + lengths // 2)) % lengths
    labels = torch.full_like(batch.labels, IGNORED)
    labels[: len(lengths)] = label_of(labelled, labelled)
    return replace(batch, input_ids=ids, labels=labels, num_targets=len(lengths))
