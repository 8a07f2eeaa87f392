"""Masked-language-model pretraining: model, objective, metrics and data of a rank."""

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
from neobert.export.folder import read_tokenizer_files
from neobert.families.build import build_masked_lm
from neobert.objectives import Objective, check_labels
from neobert.objectives.objective import most_targets
from neobert.parallel import World
from neobert.runfiles.checkpoint.state import DATA_FINGERPRINT, TOKENIZER_DIGEST
from neobert.tasks.pretraining.masked_words import masked_words_of
from neobert.tasks.pretraining.metrics import MaskedTokenMetrics
from neobert.tasks.probes import attention_answers
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
    """Build model, objective and data of a pretraining run.

    A fresh run starts from the weights of `model.pretrained_checkpoint`; a resumed run loads its checkpoint
    afterwards. `on_sign` is called on progress while waiting for data.

    Raises `ProjectError` MOD002 if the model's vocabulary is smaller than the tokenizer's, and EXP005 if the
    initial weights do not fit or have another vocabulary.
    """
    vocab_size = vocabulary_rows(config, prepared.tokenizer)
    built = build_masked_lm(config, prepared.tokenizer, vocab_size, world)
    model, objective = built.model, built.objective
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("model: %s parameters, %d tokens", f"{num_parameters:,}", vocab_size)
    if is_fresh:
        start_from_weights(config, prepared.tokenizer, built.load)
    if prepared.eval is None:
        log.warning("no evaluation: the text has no evaluation split, and no documents are held out")
    is_stream = isinstance(prepared.train, DocumentStream)
    log.info("data loader: %s", describe_loader(config.dataset, is_stream=is_stream))
    rates = masking_rates(config.datacollator)
    data = PretrainingData(config, prepared, world, vocab_size, on_sign)
    return Task(
        model=model,
        objective=objective,
        batches=data.batches,
        evaluation=None if prepared.eval is None else data.evaluation,
        metrics=partial(MaskedTokenMetrics, world.device),
        inputs=data.inputs,
        worst_case=partial(with_most_targets, objective, rates),
        probe=partial(attention_answers, token_classes=vocab_size),
        describe=describe,
        flops=data.flops,
        epoch=data.epoch,
        microbatches_per_epoch=data.microbatches_per_epoch,
        tokenizer_files=read_tokenizer_files(prepared.tokenizer_dir),
        identity={
            DATA_FINGERPRINT: prepared.fingerprint,
            TOKENIZER_DIGEST: prepared.tokenizer.digest,
            **built.identity,
        },
        attention_kernel=built.attention,
        num_classes=vocab_size,
        targets_per_token=rates.training,
        read_retries=data.read_retries,
        guesser=None if prepared.eval is None else masked_words_of(prepared.eval, prepared.tokenizer),
        overlaps_exchange=built.overlaps_exchange,
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
