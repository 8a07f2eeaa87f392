"""Question answering: objective, metrics and known-answer test of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.targets import IGNORED
from neobert.probes.layout import Layout
from neobert.tasks.planted import train_on_planted
from neobert.tasks.question_answering.evaluated import EvaluationText
from neobert.tasks.question_answering.examples import span_label
from neobert.tasks.question_answering.metrics import AnswerMetrics
from neobert.tasks.question_answering.objective import SpanObjective
from neobert.tasks.question_answering.section import QUESTION_ANSWERING
from neobert.tasks.rank_data import segment_lengths, task_over
from neobert.training.loop.task import ProbeResult, Task, TaskInputs, TaskProber


def build(run: TaskInputs) -> Task:
    """Build objective and metrics of a question answering run."""
    mean, text = run.prepared.train.statistics.mean, EvaluationText(run.config, run.prepared)
    return task_over(
        run,
        objective=SpanObjective(run.backbone),
        metrics=partial(AnswerMetrics, run.world.device, text, QUESTION_ANSWERING.read_section(run.config)),
        worst_case=with_every_answer,
        probe=probe_answers,
        num_classes=round(mean),  # the tokens of a window
        targets_per_token=1 / mean,
    )


def with_every_answer(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label the token in the middle of every window, for the worst case of time and memory."""
    middle = segment_lengths(batch) // 2
    labels = torch.full((len(batch.groups),), IGNORED)
    labels[: len(middle)] = span_label(middle, middle)
    return replace(batch, labels=labels, num_targets=len(middle))


def probe_answers(examiner: TaskProber, batch: Microbatch) -> Iterator[ProbeResult]:
    """Yield the result of training on planted answers (see `train_on_planted`)."""
    yield train_on_planted("planted answers", examiner, batch, plant_answers)


def plant_answers(batch: Microbatch, shift: int, draw: torch.Generator) -> Microbatch:
    """Write the token with the largest id at one position of each window, and label it as the answer.

    With `shift`, the label is another token, half a window further on.
    """
    layout = Layout.from_microbatch(batch)
    lengths = torch.stack([each.new_tensor(len(each)) for each in layout.documents()])
    positions = (torch.rand(len(lengths), generator=draw) * lengths).long()
    is_planted = layout.is_token & (layout.position == positions[layout.document])
    ids = torch.where(is_planted.view_as(batch.input_ids), batch.input_ids.max(), batch.input_ids)
    labelled = (positions + shift * (1 + lengths // 2)) % lengths
    labels = torch.full_like(batch.labels, IGNORED)
    labels[: len(lengths)] = span_label(labelled, labelled)
    return replace(batch, input_ids=ids, labels=labels, num_targets=len(lengths))
