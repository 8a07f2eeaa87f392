"""Token classification: objective, metrics and known-answer test of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.objectives.labelled import LabelledObjective
from neobert.tasks.planted import train_on_planted
from neobert.tasks.rank_data import task_over
from neobert.tasks.token_classification.labels import TAGS
from neobert.tasks.token_classification.metrics import TagMetrics
from neobert.tasks.token_classification.section import TOKEN_CLASSIFICATION
from neobert.training.loop.task import ProbeResult, Task, TaskInputs, TaskProber

MAX_LABELS = 4
"""Maximum number of planted labels: a narrow model cannot learn a whole vocabulary of them in ten steps."""


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a token classification run."""
    section = TOKEN_CLASSIFICATION.read_section(run.config)
    return task_over(
        run,
        objective=LabelledObjective(run.backbone),
        metrics=partial(TagMetrics, run.world.device, section.label_names),
        worst_case=with_every_label,
        probe=partial(probe_tagger, num_labels=len(section.label_names)),
        targets_per_token=labelled_share(run.prepared),
    )


def labelled_share(prepared: PreparedData) -> float:
    """Return the share of the training tokens that have a label: first tokens of words."""
    assert isinstance(prepared.train, SegmentStore)
    labelled = sum(int((labels != IGNORED).sum()) for labels in prepared.train.column(TAGS))
    return labelled / prepared.train.num_tokens


def with_every_label(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every token of a full microbatch, for the worst case of time and memory."""
    labels = torch.zeros_like(batch.input_ids)
    return replace(batch, labels=labels, num_targets=labels.numel())


def probe_tagger(examiner: TaskProber, batch: Microbatch, *, num_labels: int) -> Iterator[ProbeResult]:
    """Yield the result of training on planted labels of tokens (see `train_on_planted`)."""
    tokens = batch.input_ids.unique()[-min(num_labels, MAX_LABELS) :]
    yield train_on_planted("planted labels", examiner, batch, partial(plant_labels, tokens=tokens))


def plant_labels(batch: Microbatch, shift: int, draw: torch.Generator, *, tokens: Tensor) -> Microbatch:
    """Write one of the tokens at every other scored position, with its number as label; score only these.

    `shift` changes every label.
    """
    chosen = torch.randint(len(tokens), batch.input_ids.shape, generator=draw)
    is_planted = (batch.labels != IGNORED) & (batch.position_ids % 2 == 1)
    return replace(
        batch,
        input_ids=torch.where(is_planted, tokens[chosen], batch.input_ids),
        labels=torch.where(is_planted, (chosen + shift) % len(tokens), IGNORED),
        num_targets=int(is_planted.sum()),
    )
