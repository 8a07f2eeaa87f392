"""Classification: objective and metrics of a rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from neobert.data.batches.microbatch import Microbatch
from neobert.objectives.labelled import LabelledObjective
from neobert.tasks.classification.metrics import PredictionMetrics
from neobert.tasks.classification.probe import classifier_answers
from neobert.tasks.rank_data import task_over
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a classification run."""
    return task_over(
        run,
        objective=LabelledObjective(run.backbone),
        metrics=partial(PredictionMetrics, run.world.device),
        worst_case=with_every_label,
        probe=classifier_answers,
        targets_per_token=1 / run.prepared.train.statistics.mean,
    )


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every segment of a full microbatch, for the worst case of time and memory.

    All segments get the label of the first one.
    """
    size = len(batch.cu_seqlens) - 1 if batch.cu_seqlens is not None else len(batch.input_ids)
    labels = batch.labels[:1].expand(size).contiguous()
    return replace(batch, labels=labels, num_targets=size)
