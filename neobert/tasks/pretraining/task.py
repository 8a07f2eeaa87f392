"""Masked-language-model pretraining: model, objective, metrics and what its microbatches mean to the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.streams import EvalStream, Microbatch, TrainStream, describe_loader
from neobert.data.batches.targets import IGNORED
from neobert.data.batches.windows import Cursor
from neobert.data.store.prepare import PreparedData
from neobert.data.store.token_store import TokenStore
from neobert.data.tokenize.tokenizers import TokenizerBundle, num_renumbered
from neobert.errors import ProjectError
from neobert.export.folder import read_tokenizer_files
from neobert.families.build import build_masked_lm
from neobert.families.table import initial_weights, requested_rows, shape_of
from neobert.objectives import Objective, check_labels
from neobert.objectives.target_rows import most_targets
from neobert.parallel import World
from neobert.tasks.pretraining.metrics import MaskedTokenMetrics
from neobert.training.loop.task import Task
from neobert.training.state.progress import Progress

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

    A fresh run starts from the weights of `model.pretrained_checkpoint`; a resumed one has its own.
    `on_sign` is called on progress while waiting for data.
    Raises `ProjectError` MOD002 if the model's vocabulary is smaller than the tokenizer's, EXP005 if
    those weights do not fit or have another vocabulary.
    """
    vocab_size = vocabulary_rows(config, prepared.tokenizer)
    built = build_masked_lm(config, prepared.tokenizer, vocab_size, world)
    model, objective = built.model, built.objective
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("model: %s parameters, %d tokens", f"{num_parameters:,}", vocab_size)
    starts_from = initial_weights(config)
    if is_fresh and starts_from is not None:
        weights = Path(starts_from)
        refuse_other_vocabulary(prepared.tokenizer, weights)
        built.load(weights)
    if prepared.eval is None:
        log.warning("no evaluation: the text has no split for it, and none of it is held out")
    is_stream = isinstance(prepared.train, DocumentStream)
    log.info("data loader: %s", describe_loader(config.dataset, is_stream=is_stream))
    data = PretrainingData(config, prepared, world, vocab_size, on_sign)
    return Task(
        model=model,
        objective=objective,
        batches=data.batches,
        evaluation=None if prepared.eval is None else data.evaluation,
        metrics=partial(MaskedTokenMetrics, world.device),
        inputs=data.inputs,
        worst_case=partial(with_most_targets, objective, config.datacollator.mlm_probability),
        describe=describe,
        flops=data.flops,
        epoch=data.epoch,
        tokenizer_files=read_tokenizer_files(prepared.tokenizer_dir),
        identity={
            "data fingerprint": prepared.fingerprint,
            "tokenizer digest": prepared.tokenizer.digest,
            **built.identity,
        },
        attention_kernel=built.attention,
        targets_per_token=config.datacollator.mlm_probability,
        read_retries=data.read_retries,
        overlaps_exchange=built.overlaps_exchange,
    )


def vocabulary_rows(config: RunConfig, tokenizer: TokenizerBundle) -> int:
    """Return the rows of the embedding: the tokenizer's size, or what the config asks for beyond it.

    Weights that are gone on from may have been made without rows for inert tokens, which no text has.
    """
    asked, is_fresh = requested_rows(config), initial_weights(config) is None
    if asked is None:
        return tokenizer.vocab_size
    least = tokenizer.vocab_size if is_fresh else tokenizer.num_tokens
    if asked < least:
        raise ProjectError(
            "MOD002",
            f"model.vocab_size is {asked:,}, and the tokenizer has {least:,} tokens",
            f"set model.vocab_size to {least} or to null",
            "model.vocab_size",
        )
    return asked


def refuse_other_vocabulary(tokenizer: TokenizerBundle, weights: Path) -> None:
    """Raise `ProjectError` EXP005 where the tokenizer beside weights numbers its tokens otherwise."""
    folder = weights if weights.is_dir() else weights.parent
    file = folder / "tokenizer.json"
    num_other, num_tokens = num_renumbered(tokenizer, file) if file.is_file() else (0, 0)
    if num_other:
        raise ProjectError(
            "EXP005",
            f"{folder} was trained with another tokenizer: {num_other:,} of its {num_tokens:,} tokens have "
            "another number here, or none",
            f"set tokenizer.path to {folder}",
            "tokenizer",
        )


@dataclass(frozen=True, slots=True)
class PretrainingData:
    """The microbatches of one rank, and what they mean to the loop."""

    config: RunConfig
    prepared: PreparedData
    world: World
    vocab_size: int
    on_sign: Callable[[], None] = lambda: None

    def batches(self, cursor: Cursor) -> TrainStream:
        """Yield this rank's training microbatches from a cursor on."""
        return TrainStream(
            self.prepared,
            self.config,
            self.prepared.tokenizer,
            rank=self.world.rank,
            world_size=self.world.size,
            cursor=cursor,
            on_sign=self.on_sign,
        )

    def evaluation(self) -> EvalStream:
        """Yield this rank's evaluation microbatches."""
        return EvalStream(
            self.prepared,
            self.config,
            self.prepared.tokenizer,
            rank=self.world.rank,
            world_size=self.world.size,
        )

    def inputs(self, batch: Microbatch, device: torch.device) -> dict[str, Any]:
        """Return the objective's arguments. Raises `IndexError` for a label outside the vocabulary."""
        check_labels(batch.labels, self.vocab_size)
        on_device = batch.to(device)
        return {
            "num_targets": batch.num_targets,
            "labels": on_device.labels,
            "input_ids": on_device.input_ids,
            "position_ids": on_device.position_ids,
            "attention_mask": on_device.attention_mask,
            "cu_seqlens": on_device.cu_seqlens,
            "max_seqlen": batch.max_seqlen,
        }

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward; padding earns none."""
        decoded = batch.num_targets if self.config.trainer.masked_logits_only_loss else batch.num_tokens
        shape = shape_of(self.config, self.vocab_size)
        return shape.block_flops(segment_lengths(batch).tolist()) + 6 * shape.decoder_products * decoded

    def read_retries(self) -> int | None:
        """Return how often a read of the training stream was retried; None for prepared text."""
        train = self.prepared.train
        return train.reader.num_retries if isinstance(train, DocumentStream) else None

    def epoch(self, progress: Progress) -> float:
        """Return passes over the training text; a stream's length is not known, so it counts whole ones."""
        train = self.prepared.train
        if isinstance(train, TokenStore):
            return progress.tokens_total / train.num_tokens
        return float(progress.cursor.epoch)


def segment_lengths(batch: Microbatch) -> torch.Tensor:
    """Return the lengths of the documents of a microbatch, int64 [num_segments]."""
    if batch.attention_mask is not None:
        return batch.attention_mask.sum(1)
    assert batch.cu_seqlens is not None
    return batch.cu_seqlens[: batch.num_segments + 1].diff().to(torch.int64)


def with_most_targets(
    objective: Objective, probability: float, batch: Microbatch, is_training: bool
) -> Microbatch:
    """Give a microbatch as many targets as the decoder has rows for, else as masking may choose.

    They are spread out, for the decoder gathers them from everywhere.
    """
    ids = batch.input_ids.flatten()
    capacity = objective.capacity if is_training else objective.eval_capacity
    labels = torch.full_like(ids, IGNORED)
    places = torch.linspace(0, ids.numel() - 1, capacity or most_targets(ids.numel(), probability)).long()
    labels[places] = ids[places]
    num_targets = int((labels != IGNORED).sum())
    return replace(batch, labels=labels.reshape(batch.input_ids.shape), num_targets=num_targets)


def describe(batch: Microbatch) -> dict[str, Any]:
    """Say where a microbatch's samples are."""
    return {"sample_ids": batch.sample_ids, "next": batch.cursor.to_dict()}
