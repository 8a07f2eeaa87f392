"""Classification: objective, metrics and known-answer test of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch, ignored_label
from neobert.objectives.labelled import LabelledObjective
from neobert.probes.layout import Layout
from neobert.tasks.classification.metrics import PredictionMetrics
from neobert.tasks.planted import train_on_planted
from neobert.tasks.rank_data import task_over
from neobert.training.loop.task import ProbeResult, Task, TaskInputs, TaskProber

MAX_CLASSES = 4
"""Maximum number of planted classes: each needs its own token and several texts that contain the token."""


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a classification run."""
    return task_over(
        run,
        objective=LabelledObjective(run.backbone),
        metrics=partial(PredictionMetrics, run.world.device),
        worst_case=with_every_label,
        probe=probe_classifier,
        targets_per_token=1 / run.prepared.train.statistics.mean,
    )


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every segment of a full microbatch, for the worst case of time and memory.

    All segments get the label of the first one.
    """
    size = len(batch.cu_seqlens) - 1 if batch.cu_seqlens is not None else len(batch.input_ids)
    labels = batch.labels[:1].expand(size).contiguous()
    return replace(batch, labels=labels, num_targets=size)


def probe_classifier(examiner: TaskProber, batch: Microbatch) -> Iterator[ProbeResult]:
    """Yield the result of training on planted classes or scores (see `train_on_planted`)."""
    values = planted_values(examiner.score(batch).logits, batch.labels)
    tokens = batch.input_ids.unique()[-len(values) :]
    values = values[: len(tokens)]
    yield train_on_planted(
        "planted labels", examiner, batch, partial(plant_labels, tokens=tokens, values=values)
    )


def planted_values(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the labels to plant: classes, or two scores around the model's current predictions."""
    if labels.is_floating_point():
        return logits.mean().cpu() + torch.tensor([-1.0, 1.0])
    return torch.arange(min(logits.shape[1], MAX_CLASSES))


def plant_labels(
    batch: Microbatch, shift: int, draw: torch.Generator, *, tokens: Tensor, values: Tensor
) -> Microbatch:
    """Write a token at every other position of each text, and label the text with that token's value.

    Values are distributed evenly over the texts in random order, so that no order of labels fits by chance.
    `shift` rotates the values among the tokens.
    """
    count = batch.num_segments
    chosen = (torch.arange(count) % len(values))[torch.randperm(count, generator=draw)]
    segment = Layout.from_microbatch(batch).document.view_as(batch.input_ids)
    is_planted = batch.position_ids % 2 == 1
    labels = torch.full_like(batch.labels, ignored_label(batch.labels.numpy()))
    labels[:count] = values.roll(shift)[chosen]
    ids = torch.where(is_planted, tokens[chosen][segment], batch.input_ids)
    return replace(batch, input_ids=ids, labels=labels, num_targets=count)
