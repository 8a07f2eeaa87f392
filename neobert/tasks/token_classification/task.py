"""Token classification: objective and metrics of a rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.prepare import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.objectives.labelled import LabelledObjective
from neobert.tasks.rank_data import task_over
from neobert.tasks.token_classification.labels import TAGS
from neobert.tasks.token_classification.metrics import TagMetrics
from neobert.tasks.token_classification.probe import tagger_answers
from neobert.tasks.token_classification.section import TOKEN_CLASSIFICATION
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a token classification run."""
    section = TOKEN_CLASSIFICATION.of(run.config)
    return task_over(
        run,
        objective=LabelledObjective(run.backbone),
        metrics=partial(TagMetrics, run.world.device, section.label_names),
        worst_case=with_every_label,
        probe=partial(tagger_answers, num_labels=len(section.label_names)),
        targets_per_token=labelled_share(run.prepared),
    )


def labelled_share(prepared: PreparedData) -> float:
    """Return the share of the training tokens that begin a word."""
    assert isinstance(prepared.train, SegmentStore)
    labelled = sum(int((labels != IGNORED).sum()) for labels in prepared.train.column(TAGS))
    return labelled / prepared.train.num_tokens


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every token of a full microbatch, for the worst case of time and memory."""
    labels = torch.zeros_like(batch.input_ids)
    return replace(batch, labels=labels, num_targets=labels.numel())
