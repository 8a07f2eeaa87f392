"""Contrastive training: objective, step, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.shape import segment_length
from neobert.data.batches.targets import IGNORED
from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.folder import with_plain_texts
from neobert.tasks.contrastive.loss import Loss
from neobert.tasks.contrastive.metrics import PairMetrics
from neobert.tasks.contrastive.objective import Embedder
from neobert.tasks.contrastive.reference import ReferenceStep
from neobert.tasks.contrastive.rows import reads_scores
from neobert.tasks.contrastive.scored import ScoreLoss
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.tasks.contrastive.step import ContrastiveStep
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> EmbeddingTask:
    """Build objective, step, metrics and data of a contrastive run."""
    section = CONTRASTIVE.of(run.config)
    widths = section.matryoshka_dims
    loss, of_scores = Loss(section.temperature, widths), None
    if reads_scores(run.config):
        of_scores = ScoreLoss(section.temperature, section.teacher_temperature, widths)
    step = ContrastiveStep(loss, of_scores)
    task = task_over(
        run,
        ContrastiveData,
        objective=Embedder(run.backbone, section.pooling),
        metrics=partial(PairMetrics, section.temperature, of_scores),
        worst_case=with_every_query,
        step=step,
        reference_step=ReferenceStep(loss, of_scores),
        logged=step.tally.take,
        targets_per_token=1 / run.prepared.train.statistics.mean,
    )
    own = {each.name: getattr(task, each.name) for each in fields(task)}
    assert task.tokenizer_files is not None, "task_over reads them"
    # Other programs read a text as it was trained on.
    own["tokenizer_files"] = with_plain_texts(task.tokenizer_files)
    prompts = {"query": section.query_prompt or "", "document": section.document_prompt or ""}
    files = EmbeddingFiles(
        section.pooling, task.model.config.hidden_size, segment_length(run.config), prompts, normalizes=True
    )
    return EmbeddingTask(**own, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTask(Task):
    """A task whose checkpoints sentence-transformers loads with their pooling and prompts."""

    files: EmbeddingFiles

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a folder for `from_pretrained` and for SentenceTransformer."""
        Task.save(self, folder, weights)
        self.files.write(folder)


class ContrastiveData(RankData):
    """Microbatches of one rank, with their FLOPs."""

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding and second passes."""
        return self.shape.block_flops(segment_lengths(batch).tolist())


def with_every_query(batch: Microbatch, *, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label the first text of every example, for the worst case of time and memory."""
    before = torch.cat([batch.groups.new_tensor([-1]), batch.groups[:-1]])
    is_first = (batch.groups >= 0) & (batch.groups != before)
    return replace(batch, labels=torch.where(is_first, 0, IGNORED), num_targets=int(is_first.sum()))
