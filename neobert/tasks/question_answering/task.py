"""Question answering: objective and metrics of a rank."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.tasks.question_answering.evaluated import EvaluationText
from neobert.tasks.question_answering.examples import label_of
from neobert.tasks.question_answering.metrics import AnswerMetrics
from neobert.tasks.question_answering.objective import SpanObjective
from neobert.tasks.question_answering.probe import span_answers
from neobert.tasks.question_answering.section import QUESTION_ANSWERING
from neobert.tasks.rank_data import segment_lengths, task_over
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a question answering run."""
    mean, text = run.prepared.train.statistics.mean, EvaluationText(run.config, run.prepared)
    return task_over(
        run,
        objective=SpanObjective(run.backbone),
        metrics=partial(AnswerMetrics, run.world.device, text, QUESTION_ANSWERING.of(run.config)),
        worst_case=with_every_answer,
        probe=span_answers,
        num_classes=round(mean),  # the tokens of a window
        targets_per_token=1 / mean,
    )


def with_every_answer(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label the token in the middle of every window, for the worst case of time and memory."""
    middle = segment_lengths(batch) // 2
    labels = torch.full((len(batch.groups),), IGNORED)
    labels[: len(middle)] = label_of(middle, middle)
    return replace(batch, labels=labels, num_targets=len(middle))
