"""Known-answer test of question answering: planted answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout
from neobert.tasks.planted import learned
from neobert.tasks.question_answering.examples import label_of
from neobert.training.loop.task import Answer, Examiner


def span_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted answers are learned and belong to their windows."""
    yield learned("planted answers", examiner, batch, planted)


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
