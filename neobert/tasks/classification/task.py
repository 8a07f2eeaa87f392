"""Classification: model, objective, metrics and data of a rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.store.prepare import PreparedData
from neobert.model import NeoBERTForSequenceClassification
from neobert.parallel import World
from neobert.tasks.classification.metrics import PredictionMetrics
from neobert.tasks.classification.probe import classifier_answers
from neobert.tasks.classification.rows import is_regression, num_labels
from neobert.tasks.fine_tuning import build_model, build_task, label_settings
from neobert.tasks.labelled import LabelledObjective
from neobert.tasks.rank_data import RankData, segment_lengths
from neobert.training.loop.task import Task


def build(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Build model, objective and data of a classification run. Arguments and errors as for `build_model`."""
    model, kernels = build_model(
        NeoBERTForSequenceClassification,
        config,
        prepared,
        world,
        is_fresh=is_fresh,
        **head_settings(config),
    )
    return build_task(
        model,
        kernels,
        ClassificationData(config, prepared, world, model.config.vocab_size, on_sign),
        objective=ClassificationObjective(model),
        metrics=partial(PredictionMetrics, world.device),
        worst_case=with_every_label,
        probe=classifier_answers,
        targets_per_token=1 / prepared.train.statistics.mean,
    )


def head_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the classifier, as arguments of `NeoBERTConfig`."""
    section, is_number = config.classification, is_regression(config)
    settings: dict[str, Any] = {
        "pooling": section.pooling,
        "classifier_dropout": section.dropout,
        "num_labels": num_labels(config),
        "problem_type": "regression" if is_number else "single_label_classification",
    }
    if section.label_names and not is_number:
        settings |= label_settings(section.label_names)
    return settings


class ClassificationObjective(LabelledObjective):
    """Sum the cross-entropy over classes, or the squared error of scores, over the labelled texts.

    N is the number of rows, or of segments in a packed run's cu_seqlens, including empty ones.
    """

    def logits(self, inputs: dict[str, Any]) -> Tensor:
        """Return logits [N, L] in fp32."""
        hidden = self.model.model(**inputs).last_hidden_state
        pooled = self.model.pooled(hidden, inputs["attention_mask"], inputs["cu_seqlens"])
        logits: Tensor = self.model.classify(pooled)
        return logits.to(torch.float32)


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
