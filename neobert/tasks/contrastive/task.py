"""Contrastive training: objective, step, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from neobert.config.schedules import MaskingRates, masking_rates
from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.shape import segment_length
from neobert.encoding.declared import declared_max_length
from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.folder import with_tokenizer_settings
from neobert.families.table import initial_weights
from neobert.objectives import token_objective_for
from neobert.runfiles.model_folder import folder_of_weights
from neobert.tasks.contrastive.loss import InfoNCELoss
from neobert.tasks.contrastive.masked_lm import MaskedTerm, MixedEmbedder, MixedMetrics
from neobert.tasks.contrastive.metrics import PairMetrics
from neobert.tasks.contrastive.objective import Embedder
from neobert.tasks.contrastive.reference import ReferenceStep
from neobert.tasks.contrastive.rows import reads_scores
from neobert.tasks.contrastive.scored import ScoreLoss
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.tasks.contrastive.step import ContrastiveStep
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.tasks.token_task import with_most_targets
from neobert.training.loop.task import Task, TaskInputs


def build(run: TaskInputs) -> EmbeddingTask:
    """Build objective, step, metrics and data of a contrastive run, with the files of its checkpoints."""
    config, section = run.config, CONTRASTIVE.read_section(run.config)
    widths = section.matryoshka_dims
    loss, score_loss = InfoNCELoss(section.temperature, widths), None
    if reads_scores(config):
        score_loss = ScoreLoss(section.temperature, section.teacher_temperature, widths)
    objective = build_objective(run)
    masked = MaskedTerm(section.masked_lm_weight) if section.masked_lm_weight else None
    metrics = MixedMetrics if masked else PairMetrics
    step = ContrastiveStep(loss, score_loss, masked)
    task = task_over(
        run,
        ContrastiveData,
        objective=objective,
        metrics=partial(metrics, section.temperature, score_loss),
        worst_case=partial(with_every_target, objective, masking_rates(config.datacollator)),
        step=step,
        reference_step=ReferenceStep(loss, score_loss, section.masked_lm_weight),
        logged_metrics=step.logged_metrics,
        num_classes=1,
        targets_per_token=1 / run.prepared.train.statistics.mean,
    )
    own = {each.name: getattr(task, each.name) for each in fields(task)}
    assert task.tokenizer_files is not None, "task_over reads them"
    # Other programs read a text as it was trained on: special tokens that it spells out are plain text.
    own["tokenizer_files"] = with_tokenizer_settings(task.tokenizer_files, split_special_tokens=True)
    prompts = {"query": section.query_prompt or "", "document": section.document_prompt or ""}
    width, longest = task.model.config.hidden_size, _max_text_length(config, run.backbone.max_length)
    files = EmbeddingFiles(section.pooling, width, longest, prompts, normalizes=True)
    return EmbeddingTask(**own, files=files)


def _max_text_length(config: RunConfig, positions: int) -> int:
    """Return the length in tokens at which the checkpoint truncates texts.

    A model fine-tuned on short pairs keeps the length that its weights declare, else all of its `positions`;
    a model from random weights has the row length of the run.
    """
    longest, weights = segment_length(config), initial_weights(config)
    if weights is None:
        return longest
    declared = declared_max_length(folder_of_weights(Path(weights))) or positions
    return max(longest, min(declared, positions))


def build_objective(run: TaskInputs) -> Embedder:
    """Build the objective of a run, with a head over the vocabulary if a masked-LM loss is added."""
    config, section, rates = (
        run.config,
        CONTRASTIVE.read_section(run.config),
        masking_rates(run.config.datacollator),
    )
    if not section.masked_lm_weight:
        return Embedder(run.backbone, section.pooling)
    words = token_objective_for(config, run.backbone, run.world.device.type, rates, targets_only=True)
    return MixedEmbedder(run.backbone, section.pooling, words)


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
        """Count the FLOPs of a microbatch, forward and backward, without padding and repeated passes."""
        once = self.shape.block_flops(segment_lengths(batch).tolist())
        if batch.masked_ids is None:
            return once
        return 2 * once + self.shape.head_flops * self.shape.decoder_products * batch.num_masked


def with_every_target(
    objective: Embedder, rates: MaskingRates, batch: Microbatch, *, is_training: bool
) -> Microbatch:
    """Label every query, and the most tokens that may be masked, for the worst case of time and memory."""
    labelled = batch.label_all_examples()
    if not isinstance(objective, MixedEmbedder):
        return labelled
    masked = with_most_targets(objective.words, rates, batch, is_training=is_training)
    return replace(labelled, masked_ids=batch.input_ids, masked_labels=masked.labels)
