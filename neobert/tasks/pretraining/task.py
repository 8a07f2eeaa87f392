"""Masked-language-model pretraining: objective, metrics and data of a rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from neobert.config.schedules import MaskingRates, masking_rates
from neobert.config.schema import RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.streams import Microbatch, describe_loader
from neobert.data.batches.targets import IGNORED
from neobert.data.store.prepare import PreparedData
from neobert.families.backbone import Backbone
from neobert.objectives import Objective, build_objective, check_labels
from neobert.objectives.objective import most_targets
from neobert.parallel import World
from neobert.tasks.pretraining.masked_words import masked_words_of
from neobert.tasks.pretraining.metrics import MaskedTokenMetrics
from neobert.tasks.rank_data import RankData, segment_lengths, task_over
from neobert.training.loop.task import Task

log = logging.getLogger(__name__)


def build(
    config: RunConfig,
    prepared: PreparedData,
    world: World,
    backbone: Backbone,
    *,
    on_sign: Callable[[], None] = lambda: None,
) -> Task:
    """Build objective, metrics and data of a pretraining run. `on_sign`: called while waiting for data."""
    vocab_size = backbone.model.config.vocab_size
    if prepared.eval is None:
        log.warning("no evaluation: the text has no evaluation split, and no documents are held out")
    is_stream = isinstance(prepared.train, DocumentStream)
    log.info("data loader: %s", describe_loader(config.dataset, is_stream=is_stream))
    rates = masking_rates(config.datacollator)
    objective = build_objective(config, backbone, world.device.type)
    return task_over(
        backbone,
        PretrainingData(config, prepared, world, vocab_size, on_sign),
        objective=objective,
        metrics=partial(MaskedTokenMetrics, world.device),
        worst_case=partial(with_most_targets, objective, rates),
        targets_per_token=rates.training,
        guesser=None if prepared.eval is None else masked_words_of(prepared.eval, prepared.tokenizer),
    )


class PretrainingData(RankData):
    """Microbatches of one rank, with their inputs and FLOPs."""

    def inputs(self, batch: Microbatch, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the objective. Raises `IndexError` for a label outside the vocabulary."""
        check_labels(batch.labels, self.vocab_size)
        return super().inputs(batch, device)

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding."""
        decoded = batch.num_targets if self.config.trainer.masked_logits_only_loss else batch.num_tokens
        blocks = self.shape.block_flops(segment_lengths(batch).tolist())
        return blocks + 6 * self.shape.decoder_products * decoded


def with_most_targets(
    objective: Objective, rates: MaskingRates, batch: Microbatch, *, is_training: bool
) -> Microbatch:
    """Return the microbatch with the maximum number of targets, for the worst case of time and memory.

    That is the decoder's capacity, or without one the most tokens that masking can select. The targets are
    spread evenly over the microbatch, as the decoder gathers them from all positions.
    """
    ids = batch.input_ids.flatten()
    capacity = objective.capacity if is_training else objective.eval_capacity
    probability = rates.training if is_training else rates.evaluation
    labels = torch.full_like(ids, IGNORED)
    places = torch.linspace(0, ids.numel() - 1, capacity or most_targets(ids.numel(), probability)).long()
    labels[places] = ids[places]
    num_targets = int((labels != IGNORED).sum())
    return replace(batch, labels=labels.reshape(batch.input_ids.shape), num_targets=num_targets)
