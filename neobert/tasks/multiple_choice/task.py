"""Multiple choice: objective, metrics and data of a rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.store.segment_store import SegmentStore
from neobert.tasks.multiple_choice.metrics import ChoiceMetrics
from neobert.tasks.multiple_choice.objective import ChoiceObjective
from neobert.tasks.multiple_choice.probe import choice_answers
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE
from neobert.tasks.rank_data import RankData, task_over
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective, metrics and data of a multiple choice run."""
    train = run.prepared.train
    assert isinstance(train, SegmentStore)
    return task_over(
        run,
        MultipleChoiceData,
        objective=ChoiceObjective(run.backbone, MULTIPLE_CHOICE.of(run.config).max_choices),
        metrics=partial(ChoiceMetrics, run.world.device),
        worst_case=with_every_label,
        probe=choice_answers,
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
    return batch.with_every_example()
