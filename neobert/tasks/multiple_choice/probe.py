"""Known-answer test of multiple choice: planted choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout, texts_of_example
from neobert.tasks.planted import learned
from neobert.training.loop.task import Answer, Examiner


def choice_answers(examiner: Examiner, batch: Microbatch) -> Iterator[Answer]:
    """Yield whether planted choices are learned and belong to their rows."""
    yield learned("planted choices", examiner, batch, planted)


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
