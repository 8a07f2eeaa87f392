"""Classification: model, objective, metrics and what its microbatches mean to the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.store.prepare import PreparedData
from neobert.export.folder import read_tokenizer_files
from neobert.families.neobert.build import build_for_training, load_initial_weights
from neobert.model import NeoBERTForSequenceClassification
from neobert.objectives.build import compile_encoder, refuse_loop
from neobert.parallel import World
from neobert.plan.kernels import exchange_overlaps
from neobert.tasks.classification.metrics import PredictionMetrics
from neobert.tasks.classification.objective import ClassificationObjective
from neobert.tasks.classification.probe import classifier_answers
from neobert.tasks.classification.spec import is_regression, num_labels
from neobert.tasks.rank_data import RankData, describe, segment_lengths
from neobert.tasks.weights import start_from_weights, vocabulary_rows
from neobert.training.loop.task import Task

log = logging.getLogger(__name__)


def build(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    *,
    is_fresh: bool,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Put model, objective and data of a classification run together.

    A fresh run takes the encoder of `model.pretrained_checkpoint`, and a head with initial weights unless the
    checkpoint has one of this shape. Raises `ProjectError` as `start_from_weights` and `vocabulary_rows` do.
    """
    tokenizer = prepared.tokenizer
    model, kernels = build_for_training(
        NeoBERTForSequenceClassification,
        config,
        tokenizer,
        vocabulary_rows(config, tokenizer),
        world,
        **head_settings(config),
    )
    log.info("model: %s parameters, %d labels", f"{model.num_parameters():,}", model.num_labels)
    if is_fresh:
        load = partial(load_initial_weights, model, may_lack=model.fresh_parts)
        start_from_weights(config, tokenizer, load)
    objective = ClassificationObjective(model)
    if config.trainer.torch_compile:
        refuse_loop(config, kernels)
        backend = config.trainer.torch_compile_backend
        compile_encoder(model.model, backend, is_alone=world.size == 1)
    data = ClassificationData(config, prepared, world, model.config.vocab_size, on_sign)
    return Task(
        model=model,
        objective=objective,
        batches=data.batches,
        evaluation=None if prepared.eval is None else data.evaluation,
        metrics=partial(PredictionMetrics, world.device),
        inputs=data.inputs,
        worst_case=with_every_label,
        probe=classifier_answers,
        describe=describe,
        flops=data.flops,
        epoch=data.epoch,
        microbatches_per_epoch=data.microbatches_per_epoch,
        tokenizer_files=read_tokenizer_files(prepared.tokenizer_dir),
        identity={"data fingerprint": prepared.fingerprint, "tokenizer digest": prepared.tokenizer.digest},
        attention_kernel=kernels.attention,
        num_classes=model.num_labels,
        targets_per_token=1 / prepared.train.statistics.mean,
        overlaps_exchange=exchange_overlaps(kernels.name),
    )


def head_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the classifier, as `NeoBERTConfig` takes them."""
    section, is_number = config.classification, is_regression(config)
    settings: dict[str, Any] = {
        "pooling": section.pooling,
        "classifier_dropout": section.dropout,
        "num_labels": num_labels(config),
        "problem_type": "regression" if is_number else "single_label_classification",
    }
    if section.label_names and not is_number:
        settings["id2label"] = dict(enumerate(section.label_names))
        settings["label2id"] = {name: number for number, name in enumerate(section.label_names)}
    return settings


class ClassificationData(RankData):
    """The microbatches of one rank, and what they mean to the loop."""

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward; padding earns none."""
        width = self.shape.hidden_size
        head = 6 * width * (width + num_labels(self.config)) * batch.num_targets
        return self.shape.block_flops(segment_lengths(batch).tolist()) + head


def with_every_label(batch: Microbatch, is_training: bool) -> Microbatch:  # noqa: ARG001
    """Label every segment of a microbatch that is full of text, as one of its own segments is labelled."""
    size = len(batch.cu_seqlens) - 1 if batch.cu_seqlens is not None else len(batch.input_ids)
    labels = batch.labels[:1].expand(size).contiguous()
    return replace(batch, labels=labels, num_targets=size)
