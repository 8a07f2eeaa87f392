"""Multiple choice task: its objective, metrics, the data of a rank, and its probe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.segment_store import SegmentStore
from neobert.probes.layout import Layout, max_texts_per_example
from neobert.tasks.multiple_choice.metrics import ChoiceMetrics
from neobert.tasks.multiple_choice.objective import ChoiceObjective
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE
from neobert.tasks.planted import train_on_planted
from neobert.tasks.rank_data import RankData, task_over
from neobert.training.loop.task import ProbeResult, Task, TaskInputs, TaskProber


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a multiple choice run."""
    train = run.prepared.train
    assert isinstance(train, SegmentStore)
    return task_over(
        run,
        MultipleChoiceData,
        objective=ChoiceObjective(run.backbone, MULTIPLE_CHOICE.read_section(run.config).max_choices),
        metrics=partial(ChoiceMetrics, run.world.device),
        worst_case=with_every_label,
        probe=probe_choices,
        num_classes=round(train.num_segments / len(train)),  # the choices of a row
        targets_per_token=1 / train.statistics.mean,
    )


class MultipleChoiceData(RankData):
    """Microbatches of one rank, with their inputs."""

    def inputs(self, batch: Microbatch, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the objective, with the row of each choice."""
        return super().inputs(batch, device) | {"groups": batch.groups.to(device, non_blocking=True)}


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label the first choice of every row as the right one, for the worst case of time and memory."""
    return batch.label_all_examples()


def probe_choices(examiner: TaskProber, batch: Microbatch) -> Iterator[ProbeResult]:
    """Yield the result of training on planted choices (see `train_on_planted`)."""
    yield train_on_planted("planted choices", examiner, batch, plant_labels)


def plant_labels(batch: Microbatch, shift: int, draw: torch.Generator) -> Microbatch:
    """Write the token with the largest id at every other position of each row's right choice.

    With `shift`, the label is the next choice. All rows have the same number of choices.
    """
    layout, most = Layout.from_microbatch(batch), max_texts_per_example(batch)
    num_rows = batch.num_segments // most
    right = torch.randint(most, (num_rows,), generator=draw)
    is_planted = torch.zeros(batch.num_segments, dtype=torch.bool)
    is_planted[torch.arange(num_rows) * most + right] = True
    is_here = layout.is_token & is_planted[layout.document] & (layout.position % 2 == 0)
    ids = torch.where(is_here.view_as(batch.input_ids), batch.input_ids.max(), batch.input_ids)
    labels = torch.full_like(batch.labels, IGNORED)
    labels[torch.arange(num_rows) * most] = (right + shift) % most
    return replace(batch, input_ids=ids, labels=labels, num_targets=num_rows)
