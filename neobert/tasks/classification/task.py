"""Classification: objective, metrics and data of a rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from neobert.data.batches.microbatch import Microbatch
from neobert.objectives.labelled import LabelledObjective
from neobert.tasks.classification.metrics import PredictionMetrics
from neobert.tasks.classification.probe import classifier_answers
from neobert.tasks.classification.rows import num_labels
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a classification run."""
    return task_over(
        run,
        ClassificationData,
        objective=LabelledObjective(run.backbone),
        metrics=partial(PredictionMetrics, run.world.device),
        worst_case=with_every_label,
        probe=classifier_answers,
        targets_per_token=1 / run.prepared.train.statistics.mean,
    )


class ClassificationData(RankData):
    """Microbatches of one rank, with their inputs and FLOPs."""

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding."""
        width = self.shape.hidden_size
        head = 6 * width * (width + num_labels(self.config)) * batch.num_targets
        return self.shape.block_flops(segment_lengths(batch).tolist()) + head


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every segment of a full microbatch, for the worst case of time and memory.

    All segments get the label of the first one.
    """
    size = len(batch.cu_seqlens) - 1 if batch.cu_seqlens is not None else len(batch.input_ids)
    labels = batch.labels[:1].expand(size).contiguous()
    return replace(batch, labels=labels, num_targets=size)
