"""Asynchronous saves: a snapshot at the step boundary, written by a thread during training.

A save has four stages. A crash at any time leaves the previous checkpoint intact:

1. At the step boundary, on all ranks: wait for the previous save, check the weights for NaN, compare the
   replicas, and copy the tensors to host memory (`Snapshot`). Training continues once the copies are queued.
2. On the writer thread: metrics.jsonl is synced, the files are written into a temporary folder and synced,
   and the manifest with their SHA-256 sums is written last. In a sharded run each rank writes its rows of the
   weights to the folder, and rank 0 joins them, one file in memory at a time.
3. The folder is renamed to its step, everything is read back and compared, and `latest` points at it.
4. At a later step boundary the training thread sets `saved_step`, or raises the writer thread's exception,
   on all ranks.

The files of a checkpoint:

model.safetensors config.json *.py tokenizer.json ...    `from_pretrained` reads these
model-0000i-of-0000n.safetensors                         instead, above 2 GB in a sharded run
trainer_state/optimizer.safetensors                      optimizer state by parameter name
trainer_state/optimizer/                                 the same from a sharded run, one shard per rank
trainer_state/rng_rank<k>.safetensors                    RNG state of each rank
trainer_state/state.json                                 step, cursor, counters, digests
trainer_state/resolved.json                              the config of the run
checkpoint.json                                          the manifest, written last
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed.tensor import DTensor

from neobert.config import digest
from neobert.errors import ProjectError
from neobert.export.weights import unique_weights
from neobert.metric_names import EVAL
from neobert.parallel.sharding import local_shard
from neobert.runfiles.attempt import require_current
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.training.checkpoint.content import SHARDS, CheckpointDraft, state_content, write_content
from neobert.training.checkpoint.parts import write_parts
from neobert.training.checkpoint.publish import failed_save_error, publish
from neobert.training.checkpoint.retention import apply_retention, record_metrics
from neobert.training.checkpoint.shards import wrap_shard_copy, write_shards
from neobert.training.checkpoint.tensors import (
    Layout,
    Snapshot,
    optimizer_tensors,
    random_state,
    tensor_layout,
)
from neobert.training.checkpoint.writer import WritersGroup, WriterThread
from neobert.training.guards.replicas import compare_replicas
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")

WEIGHTS, OPTIMIZER, LOSS_SUM = "weights/", "optimizer/", "loss_sum"


class Saver:
    """Writer of checkpoints, one at a time. All ranks call the same methods at the same steps.

    Attributes:
        num_saves: checkpoints that were written and verified.
        stalls_s: seconds that each save blocked training, including waits for the previous save.
        writes_s: seconds that each write took on the writer thread.
    """

    def __init__(self, trainer: Trainer, sync_history: Callable[[], None]) -> None:
        self.num_saves = 0
        self.stalls_s: list[float] = []
        self.writes_s: list[float] = []
        self._ranks = WritersGroup(trainer.world)
        self._writer = WriterThread()
        self._snapshot = Snapshot(trainer.world.device, trainer.optimizer)
        self._sync_history = sync_history
        self._draft: CheckpointDraft | None = None
        self._is_reserved = False
        self._judged: tuple[int, Mapping[str, float]] = (-1, {})

    @property
    def num_waits(self) -> int:
        """Return the number of saves that waited for the previous one."""
        return self._writer.num_waits

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether this step has no checkpoint, finished or in flight."""
        in_flight = None if self._draft is None else self._draft.step
        return not trainer.progress.is_saved and in_flight != trainer.progress.step

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        """Keep this step's evaluation for the next save, and record a completed save or raise its error."""
        self._record_metrics(trainer, _finite_evaluations(report.metrics))
        if not self._is_reserved and trainer.optimizer.state:
            self._snapshot.reserve(self._copy_layout(trainer))
            self._is_reserved = True
        if self._writer.is_done:
            self._finish_save(trainer, may_fail=_is_stop_requested(trainer))

    def begin(self, trainer: Trainer) -> None:
        """Start saving this step. Returns as soon as training can continue.

        Raises `ProjectError` if a weight is NaN or infinite, replicas differ, or the previous save failed.
        """
        self._begin_save(trainer)
        if self._writer.is_done:
            self._finish_save(trainer, may_fail=_is_stop_requested(trainer))

    def finish(self, trainer: Trainer, *, is_complete: bool) -> None:
        """Wait until this step has a complete, verified checkpoint.

        If the run was stopped and the save in flight failed, this step is saved once more. Raises the error
        of the last save.
        """
        self._finish_save(trainer, may_fail=not is_complete)
        if self.is_due(trainer):
            trainer.phases.tick()  # another save has its own time
            self._begin_save(trainer)
        self._finish_save(trainer)

    def close(self) -> None:
        """Wait for the save in flight and stop the writer thread. A failure of the save is only logged."""
        self._writer.close()
        try:
            self._writer.settle()
        except Exception as error:
            log.error("the last checkpoint could not be written: %s", error)
        if self._writer.num_waits:
            advice = "saves that waited for the previous save: %d (%.1f s in total); raise trainer.save_steps"
            log.warning(advice, self._writer.num_waits, self._writer.waited_s)

    def _begin_save(self, trainer: Trainer) -> None:
        started_s = time.perf_counter()
        self._wait_for_previous(trainer)
        trainer.guard.check_weights(trainer.task.model, trainer.progress.step)
        compare_replicas(trainer)
        generators = trainer.world.gather(random_state())
        self._draft = self._take_snapshot(trainer, generators)
        self._writer.start(partial(self._write_draft, trainer, self._draft))
        if not trainer.config.trainer.async_save:
            self._writer.wait()
        self.stalls_s.append(time.perf_counter() - started_s)

    def _record_metrics(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Keep evaluation metrics for the save of this step, or add them to its checkpoint if it is saved."""
        self._judged = (trainer.progress.step, metrics)
        if metrics and trainer.progress.is_saved and trainer.world.is_main:
            record_metrics(trainer.checkpoints, trainer.config.trainer, *self._judged)

    def _wait_for_previous(self, trainer: Trainer) -> None:
        num_waits = self._writer.num_waits
        self._writer.wait_for_previous()
        self._finish_save(trainer, may_fail=_is_stop_requested(trainer))
        if num_waits == 0 < self._writer.num_waits:
            step, waited_s = trainer.progress.step, self._writer.waited_s
            log.warning("the save of step %d waited %.1f s for the previous save", step, waited_s)

    def _finish_save(self, trainer: Trainer, *, may_fail: bool = False) -> None:
        """Wait for the save in flight and record its result.

        `may_fail`: log its error instead of raising it, because another save follows.
        """
        draft, self._draft = self._draft, None
        try:
            self._writer.settle()
        except Exception as error:
            if not may_fail:
                raise
            log.error("the save in flight failed; the run is stopping and saves once more: %s", error)
            return
        if draft is not None:
            self.num_saves += 1
            trainer.progress.saved_step = draft.step
            trainer.state.saved_at_s = draft.taken_at_s
            written_s, stalled_s = self.writes_s[-1], self.stalls_s[-1]
            message = "saved checkpoint %d in %.1f s (training blocked %.3f s)"
            log.info(message, draft.step, written_s, stalled_s)

    def _take_snapshot(self, trainer: Trainer, generators: list[bytes]) -> CheckpointDraft:
        """Copy the tensors and the state of this step to host memory for the writer thread."""
        weights = _weights_to_save(trainer)
        state, loss = _optimizer_state_to_save(trainer), _loss_to_save(trainer)
        parts = {name: local_shard(each) for name, each in state.items()}
        copies = self._snapshot.take(_with_prefix(WEIGHTS, weights) | _with_prefix(OPTIMIZER, parts) | loss)
        step, (judged_step, metrics) = trainer.progress.step, self._judged
        return CheckpointDraft(
            step=step,
            taken_at_s=time.monotonic(),
            metrics=metrics if judged_step == step else {},
            weights={name: copies[WEIGHTS + name] for name in weights},
            optimizer={name: wrap_shard_copy(copies[OPTIMIZER + name], each) for name, each in state.items()},
            loss_sum=copies.get(LOSS_SUM),
            generators=generators,
            state=state_content(trainer),
        )

    def _copy_layout(self, trainer: Trainer) -> Layout:
        parts = {name: local_shard(each) for name, each in _optimizer_state_to_save(trainer).items()}
        return tensor_layout(
            _with_prefix(WEIGHTS, _weights_to_save(trainer))
            | _with_prefix(OPTIMIZER, parts)
            | _loss_to_save(trainer)
        )

    def _write_draft(self, trainer: Trainer, draft: CheckpointDraft) -> None:
        started_s = time.perf_counter()
        self._snapshot.wait()
        if trainer.world.is_main:
            self._write_on_main(trainer, draft)
        else:
            self._write_on_other_rank(trainer, draft)
        self.writes_s.append(time.perf_counter() - started_s)

    def _write_on_main(self, trainer: Trainer, draft: CheckpointDraft) -> None:
        """Write on rank 0, and send the result to the other ranks. Raises the error of the write."""
        # The other ranks wait in `receive`: without a message they would hang until the collective times out,
        # and report the timeout in place of the cause.
        try:
            self._publish(trainer, draft)
        except BaseException as error:
            refusal = error
            if not isinstance(refusal, ProjectError):
                refusal = failed_save_error(
                    trainer.checkpoints, draft.step, f"{type(error).__name__}: {error}"
                )
            self._ranks.send(asdict(refusal))
            raise
        self._ranks.send(None)

    def _publish(self, trainer: Trainer, draft: CheckpointDraft) -> None:
        root = trainer.checkpoints

        def write(folder: Path) -> None:
            # First: a resume truncates metrics.jsonl to the checkpoint's step, and a machine that loses power
            # after the rename must not keep a checkpoint whose earlier lines are gone.
            self._sync_history()
            if trainer.world.is_sharded:
                self._ranks.send(folder)
                self._write_shares(trainer, draft, folder)
            write_content(trainer, draft, folder)

        publish(root, draft.step, digest(trainer.config), draft.created_utc, write, draft.metrics)
        require_current(root.parent)
        apply_retention(root, trainer.config.trainer, trainer.progress.resumed_step)

    def _write_shares(self, trainer: Trainer, draft: CheckpointDraft, folder: Path) -> None:
        """Write this rank's rows of the weights and its optimizer shards. All ranks call it."""
        write_parts(folder, draft.weights, trainer.world.rank, self._ranks.group)
        write_shards(folder / STATE_DIR / SHARDS, draft.optimizer, self._ranks.group)

    def _write_on_other_rank(self, trainer: Trainer, draft: CheckpointDraft) -> None:
        """Write this rank's share, if sharded, and raise the error that rank 0 reports."""
        received = self._ranks.receive()
        if trainer.world.is_sharded and isinstance(received, Path):
            with suppress(OSError):  # of all ranks: rank 0 reports it
                self._write_shares(trainer, draft, received)
            received = self._ranks.receive()
        if received is not None:
            raise ProjectError(**received)


def _is_stop_requested(trainer: Trainer) -> bool:
    """Return whether a stop was requested on this rank; then it saves once more. Other ranks may differ."""
    return trainer.signals.requested is not None


def _weights_to_save(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights that this rank copies: its rows of sharded weights; on rank 0, also all others.

    Only the first replica of a sharded model is copied.
    """
    world = trainer.world
    return {
        name: local_shard(each.detach())
        for name, each in unique_weights(trainer.task.model).items()
        if world.is_main or (world.rank < world.num_shards and isinstance(each, DTensor))
    }


def _optimizer_state_to_save(trainer: Trainer) -> dict[str, Tensor]:
    """Return the optimizer state that this rank copies: its shards or, on rank 0 of replicas, all of it.

    Empty on other ranks of replicas.
    """
    if trainer.world.is_main or trainer.world.is_sharded:
        return optimizer_tensors(trainer.task.model, trainer.optimizer)
    return {}


def _loss_to_save(trainer: Trainer) -> dict[str, Tensor]:
    return {LOSS_SUM: trainer.progress.loss.loss_sum} if trainer.world.is_main else {}


def _with_prefix(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {prefix + name: value for name, value in values.items()}


def _finite_evaluations(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the evaluation metrics of a row that are neither null nor NaN or infinite."""
    judged = {name: value for name, value in row.items() if name.startswith(EVAL) and value is not None}
    return {name: value for name, value in judged.items() if math.isfinite(value)}
