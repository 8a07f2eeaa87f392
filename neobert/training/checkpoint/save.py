"""Asynchronous saves: a snapshot at the step boundary, written by a thread during training.

A save has four stages, and a crash between any two leaves the run with an earlier checkpoint that verifies:

1. At the step boundary, on all ranks: wait for the save before, check the weights, compare the replicas, and
   copy the tensors to host memory (`Snapshot`). Training continues as soon as the copies are queued.
2. On the writer's thread: metrics.jsonl is synced, the files are written into a temporary sibling folder and
   synced, and the manifest with their SHA-256 sums is written last.
3. The folder is renamed to its step, everything is read back and compared, and `latest` points at it.
4. At a later step boundary the training thread settles the save: only now does `saved_step` name it. An
   exception of the writer is raised there, on all ranks.

The files of a checkpoint:

model.safetensors config.json *.py tokenizer.json ...    `from_pretrained` reads these
trainer_state/optimizer.safetensors                      moments by parameter name; with trainer.ema_decay the
                                                         trained weights too (exported are the averages)
trainer_state/optimizer/                                 the same from a sharded run, one shard per rank
trainer_state/rng_rank<k>.safetensors                    generators of every rank
trainer_state/state.json                                 step, cursor, counters, digests
trainer_state/resolved.json                              the config that made it
checkpoint.json                                          the manifest, written last
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from neobert.config import digest
from neobert.errors import ProjectError
from neobert.export.weights import own_weights
from neobert.metric_names import EVAL
from neobert.parallel.sharding import full_tensor, own_part
from neobert.runfiles.checkpoint.state import STATE_DIR
from neobert.training.checkpoint.content import SHARDS, Draft, describe, write_content
from neobert.training.checkpoint.publish import publish, refused
from neobert.training.checkpoint.retention import judge, tidy
from neobert.training.checkpoint.shards import stage, write_shards
from neobert.training.checkpoint.tensors import (
    Layout,
    Snapshot,
    optimizer_tensors,
    random_state,
    trained_weights,
)
from neobert.training.checkpoint.writer import Writer, WritersGroup
from neobert.training.guards.health import compare_replicas
from neobert.training.loop.hooks import StepReport
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)

WEIGHTS, OPTIMIZER, LOSS_SUM = "weights/", "optimizer/", "loss_sum"


class Saver:
    """Saver of one checkpoint at a time. All ranks call the same methods at the same steps.

    Attributes:
        num_saves: checkpoints that were written and verified.
        stalls_s: time that each save blocked training, waits included.
        writes_s: time that each write took, during training.
    """

    def __init__(self, trainer: Trainer, sync_history: Callable[[], None]) -> None:
        self.num_saves = 0
        self.stalls_s: list[float] = []
        self.writes_s: list[float] = []
        self._ranks = WritersGroup(trainer.world)
        self._writer = Writer()
        self._snapshot = Snapshot(trainer.world.device, trainer.optimizer)
        self._sync_history = sync_history
        self._draft: Draft | None = None
        self._is_reserved = False
        self._judged: tuple[int, Mapping[str, float]] = (-1, {})

    @property
    def num_waits(self) -> int:
        """Return the number of saves that waited for the previous one."""
        return self._writer.num_waits

    @property
    def is_writing(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writer.is_busy

    def is_due(self, trainer: Trainer) -> bool:
        """Return whether this step has no checkpoint, finished or in flight."""
        in_flight = None if self._draft is None else self._draft.step
        return not trainer.progress.is_saved and in_flight != trainer.progress.step

    def follow(self, trainer: Trainer, report: StepReport) -> None:
        """Keep the evaluation for the next save, and settle a completed write. Raises its error."""
        self._judge(trainer, _finite_evaluations(report.metrics))
        if not self._is_reserved and trainer.optimizer.state:
            self._snapshot.reserve(_layout(self._tensors(trainer, _as_it_is)))
            self._is_reserved = True
        if self._writer.is_done:
            self._settle(trainer, may_fail=_is_to_stop(trainer))

    def begin(self, trainer: Trainer) -> None:
        """Start to save this step. Returns as soon as training can continue.

        Raises `ProjectError` if a weight is NaN or infinite, or if the previous save failed.
        """
        self._begin(trainer)
        if self._writer.is_done:
            self._settle(trainer, may_fail=_is_to_stop(trainer))

    def finish(self, trainer: Trainer, *, is_complete: bool) -> None:
        """Wait until this step has a checkpoint that verifies.

        A run that was stopped has no later step to save at, so a save that failed is tried once more.
        """
        self._settle(trainer, may_fail=not is_complete)
        if self.is_due(trainer):
            trainer.phases.tick()  # another save has its own time
            self._begin(trainer)
        self._settle(trainer)

    def close(self) -> None:
        """Wait for the save in flight, ignore its failure, and log the time that saves cost."""
        self._writer.close()
        try:
            self._writer.settle()
        except Exception as error:
            log.error("the save in flight failed as well: %s", error)
        if self._writer.num_waits:
            advice = "%d saves waited for the previous one, %.1f s in total: raise trainer.save_steps"
            log.warning(advice, self._writer.num_waits, self._writer.waited_s)

    def _begin(self, trainer: Trainer) -> None:
        started_s = time.perf_counter()
        self._make_way(trainer)
        trainer.guard.check_weights(trainer.task.model, trainer.progress.step)
        compare_replicas(trainer)
        generators = trainer.world.gather(random_state())
        self._draft = self._take(trainer, generators)
        self._writer.start(partial(self._run, trainer, self._draft))
        if not trainer.config.trainer.async_save:
            self._writer.wait()
        self.stalls_s.append(time.perf_counter() - started_s)

    def _judge(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Keep an evaluation for the save of this step, or add it to the checkpoint that has none yet."""
        self._judged = (trainer.progress.step, metrics)
        if metrics and trainer.progress.is_saved and trainer.world.is_main:
            judge(trainer.checkpoints, trainer.config.trainer, *self._judged)

    def _make_way(self, trainer: Trainer) -> None:
        num_waits = self._writer.num_waits
        self._writer.make_way()
        self._settle(trainer, may_fail=_is_to_stop(trainer))
        if num_waits == 0 < self._writer.num_waits:
            step, waited_s = trainer.progress.step, self._writer.waited_s
            log.warning("the save of step %d waited %.1f s for the previous save", step, waited_s)

    def _settle(self, trainer: Trainer, *, may_fail: bool = False) -> None:
        """Record the result of the save in flight. `may_fail`: log its error, as another save follows."""
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

    def _take(self, trainer: Trainer, generators: list[bytes]) -> Draft:
        """Copy what the writer needs. The run itself is not changed."""
        originals = self._tensors(trainer, full_tensor)
        copies = self._snapshot.take({name: own_part(each) for name, each in originals.items()})
        step, (judged_step, metrics) = trainer.progress.step, self._judged
        state = _below(OPTIMIZER, copies)
        return Draft(
            step=step,
            taken_at_s=time.monotonic(),
            metrics=metrics if judged_step == step else {},
            weights=_below(WEIGHTS, copies),
            optimizer={name: stage(copy, originals[OPTIMIZER + name]) for name, copy in state.items()},
            loss_sum=copies.get(LOSS_SUM),
            generators=generators,
            state=describe(trainer),
        )

    def _tensors(self, trainer: Trainer, gather: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Name the tensors that this rank copies: all on rank 0, else its shard of the optimizer."""
        model, is_main = trainer.task.model, trainer.world.is_main
        tensors: dict[str, Tensor] = {}
        if is_main or trainer.world.is_sharded:
            state, exported = optimizer_tensors(model, trainer.optimizer), own_weights(model)
            if trainer.average is not None:
                state |= trained_weights(model)
                exported = {name: trainer.average.of(each) for name, each in exported.items()}
            tensors |= {OPTIMIZER + name: each for name, each in state.items()}
            weights = {WEIGHTS + name: gather(each.detach()) for name, each in exported.items()}
            tensors |= weights if is_main else {}
        return tensors | ({LOSS_SUM: trainer.progress.loss.loss_sum} if is_main else {})

    def _run(self, trainer: Trainer, draft: Draft) -> None:
        """Write a draft, on the writer's thread."""
        started_s = time.perf_counter()
        self._snapshot.wait()
        if trainer.world.is_main:
            self._lead(trainer, draft)
        else:
            self._follow(draft, is_sharded=trainer.world.is_sharded)
        self.writes_s.append(time.perf_counter() - started_s)

    def _lead(self, trainer: Trainer, draft: Draft) -> None:
        """Write on rank 0, and send the result to the other ranks."""
        # The other ranks wait in `receive`: without a message they would hang until the collective times out,
        # and report the timeout in place of the cause.
        try:
            self._publish(trainer, draft)
        except BaseException as error:
            self._ranks.send(asdict(_as_refusal(error, trainer, draft)))
            raise
        self._ranks.send(None)

    def _publish(self, trainer: Trainer, draft: Draft) -> None:
        root = trainer.checkpoints

        def write(folder: Path) -> None:
            # First: a resume truncates metrics.jsonl to the checkpoint's step, and a machine that loses power
            # after the rename must not keep a checkpoint whose earlier lines are gone.
            self._sync_history()
            if trainer.world.is_sharded:
                self._ranks.send(folder)
                write_shards(folder / STATE_DIR / SHARDS, draft.optimizer, self._ranks.group)
            write_content(trainer, draft, folder)

        publish(root, draft.step, digest(trainer.config), draft.created_utc, write, draft.metrics)
        tidy(root, trainer.config.trainer, trainer.progress.resumed_step)

    def _follow(self, draft: Draft, *, is_sharded: bool) -> None:
        """Write this rank's shard of a sharded optimizer, and raise an error of rank 0."""
        received = self._ranks.receive()
        if is_sharded and isinstance(received, Path):
            try:
                write_shards(received / STATE_DIR / SHARDS, draft.optimizer, self._ranks.group)
            finally:
                received = self._ranks.receive()
        if received is not None:
            raise ProjectError(**received)


def _as_refusal(error: BaseException, trainer: Trainer, draft: Draft) -> ProjectError:
    if isinstance(error, ProjectError):
        return error
    return refused(trainer.checkpoints, draft.step, f"{type(error).__name__}: {error}")


def _is_to_stop(trainer: Trainer) -> bool:
    """Return whether this rank has a stop request: it saves again, and others may not know yet."""
    return trainer.signals.requested is not None


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    """Return the shapes that are copied: weights whole, the optimizer's state as this rank's shard."""
    return {
        name: ((each if name.startswith(WEIGHTS) else own_part(each)).shape, each.dtype)
        for name, each in tensors.items()
    }


def _finite_evaluations(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite metrics of an evaluation; a split without targets has null."""
    judged = {name: value for name, value in row.items() if name.startswith(EVAL) and value is not None}
    return {name: value for name, value in judged.items() if math.isfinite(value)}
