"""Microbatches of one rank, for tasks whose examples are segments of a token store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from neobert.config.schema import RunConfig
from neobert.data.batches.document_stream import DocumentStream
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.streams import EvalStream, TrainStream, count_microbatches
from neobert.data.batches.windows import Cursor
from neobert.data.store.prepared_data import PreparedData
from neobert.data.store.segment_store import SegmentStore
from neobert.export.folder import drop_inert_tokens, read_tokenizer_files, with_tokenizer_settings
from neobert.families.shape import ModelShape
from neobert.families.table import model_shape
from neobert.parallel import World
from neobert.runfiles.checkpoint.state import DATA_FINGERPRINT, TOKENIZER_DIGEST
from neobert.tasks.specs import spec_of
from neobert.training.loop.task import Task, TaskInputs
from neobert.training.state.train_state import Progress


@dataclass(frozen=True, slots=True)
class RankData:
    """Microbatches of one rank.

    Attributes:
        shape: shape of the model, cached because a family may read it from a file.
    """

    config: RunConfig
    prepared: PreparedData
    world: World
    vocab_size: int
    on_progress: Callable[[], None] = lambda: None
    shape: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", model_shape(self.config, self.vocab_size))

    def flops(self, batch: Microbatch) -> int:
        """Count the FLOPs of a microbatch, forward and backward, without padding."""
        head = spec_of(self.config).head(self.config, self.shape)
        scored = batch.num_segments if head.is_per_document else batch.num_tokens
        return self.shape.block_flops(segment_lengths(batch).tolist()) + 6 * head.weights * scored

    def batches(self, cursor: Cursor) -> TrainStream:
        """Return the stream of this rank's training microbatches, starting at a cursor."""
        return TrainStream(
            self.prepared,
            self.config,
            self.prepared.tokenizer,
            rank=self.world.dp_rank,
            world_size=self.world.dp_size,
            cursor=cursor,
            on_progress=self.on_progress,
        )

    def evaluation(self) -> EvalStream:
        """Return the stream of this rank's evaluation microbatches."""
        return EvalStream(
            self.prepared,
            self.config,
            self.prepared.tokenizer,
            rank=self.world.dp_rank,
            world_size=self.world.dp_size,
        )

    def inputs(self, batch: Microbatch, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the objective's forward, on `device`."""
        return objective_inputs(batch, device)

    def read_retries(self) -> int | None:
        """Return the number of retried reads of the training stream, or None if the text is prepared."""
        train = self.prepared.train
        return train.reader.num_retries if isinstance(train, DocumentStream) else None

    def microbatches_per_epoch(self) -> int | None:
        """Count the microbatches of the first epoch; return None for a stream."""
        return count_microbatches(self.prepared.train, self.config)

    def epoch(self, progress: Progress) -> float:
        """Return the passes over the training data: a fraction for prepared text, whole ones for a stream."""
        train = self.prepared.train
        if isinstance(train, SegmentStore):
            return (progress.tokens_total - progress.first_tokens) / train.num_tokens
        return float(progress.cursor.epoch)


def task_over(run: TaskInputs, kind: Callable[..., RankData] = RankData, **own: Any) -> Task:
    """Build a task whose microbatches `kind` reads.

    Args:
        run: arguments of the task.
        kind: `RankData`, or a subclass with other inputs or FLOPs.
        own: fields of `Task`: objective, metrics, probe, worst case, targets. `num_classes` defaults to the
            number of outputs of the head.
    """
    prepared, backbone = run.prepared, run.backbone
    data = kind(run.config, prepared, run.world, backbone.model.config.vocab_size, run.on_progress)
    if "num_classes" not in own:
        own["num_classes"] = 1 if backbone.head is None else backbone.head.linear.out_features
    own.setdefault("logged_metrics", backbone.logged_metrics)
    return Task(
        backbone=backbone,
        batches=data.batches,
        evaluation=None if prepared.eval is None else data.evaluation,
        num_evaluated=0 if prepared.eval is None else len(prepared.eval),
        inputs=data.inputs,
        describe=describe_batch,
        flops=data.flops,
        epoch=data.epoch,
        microbatches_per_epoch=data.microbatches_per_epoch,
        read_retries=data.read_retries,
        tokenizer_files=_tokenizer_files(run),
        identity={
            DATA_FINGERPRINT: prepared.fingerprint,
            TOKENIZER_DIGEST: prepared.tokenizer.digest,
            **backbone.identity,
        },
        **own,
    )


def _tokenizer_files(run: TaskInputs) -> Mapping[str, bytes]:
    """Return the tokenizer files to save in checkpoints, by name.

    An encoder truncates at the row length of the prepared text; a prompt and its reply may use all positions.
    """
    tokenizer = run.prepared.tokenizer.tokenizer
    files = drop_inert_tokens(read_tokenizer_files(run.prepared.tokenizer_dir), len(tokenizer))
    if spec_of(run.config).predicts != "next":
        return files
    return with_tokenizer_settings(files, model_max_length=run.backbone.max_length)


def objective_inputs(batch: Microbatch, device: torch.device) -> dict[str, Any]:
    """Return labels, tokens and bounds of a microbatch on `device`, by argument of an objective's forward."""
    on_device, masked = batch.to(device), dict[str, Any]()
    if batch.masked_ids is not None:
        masked = {"num_masked": batch.num_masked, "masked_ids": on_device.masked_ids}
        masked["masked_labels"] = on_device.masked_labels
    return {
        "num_targets": batch.num_targets,
        "labels": on_device.labels,
        "input_ids": on_device.input_ids,
        "position_ids": on_device.position_ids,
        "token_type_ids": on_device.token_type_ids,
        "attention_mask": on_device.attention_mask,
        "cu_seqlens": on_device.cu_seqlens,
        "max_seqlen": batch.max_seqlen,
        **masked,
    }


def segment_lengths(batch: Microbatch) -> torch.Tensor:
    """Return the lengths of the segments of a microbatch, int64 [num_segments]."""
    if batch.attention_mask is not None:
        return batch.attention_mask.sum(1)
    assert batch.cu_seqlens is not None
    return batch.cu_seqlens[: batch.num_segments + 1].diff().to(torch.int64)


def describe_batch(batch: Microbatch) -> dict[str, Any]:
    """Return the sample ids of a microbatch, and the cursor after it."""
    return {"sample_ids": batch.sample_ids, "next": batch.cursor.to_dict()}
