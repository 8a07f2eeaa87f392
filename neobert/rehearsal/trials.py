"""Trials with a run's trainer: worst-case microbatch, gradient accumulation, overfitting one microbatch.

They use the functions of the training loop. Only overfitting changes the state of the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from neobert.data.batches.microbatch import Microbatch, ignored_label, is_target
from neobert.errors import ProjectError
from neobert.parallel import local_shard
from neobert.probes.layout import group_texts, max_texts_per_example, with_lengths
from neobert.runfiles.checkpoint.manifest import FILE_NAME as MANIFEST
from neobert.training.checkpoint.tensors import random_state, restore_random_state
from neobert.training.loop import steps
from neobert.training.loop.task import Step
from neobert.training.state.trainer import Trainer
from neobert.training.telemetry.stopwatch import Stopwatch

OVERFIT_STEPS = 10
SAVE_LIMIT_S = 120.0
POLL_S = 0.05


@contextmanager
def preserve_run_state(trainer: Trainer) -> Iterator[None]:
    """Run the `with` block without effect on the run: restore RNG state, stopwatch, FLOPs and gradients."""
    generators, stopwatch, flops = random_state(), trainer.stopwatch, trainer.state.flops
    trainer.stopwatch = Stopwatch(trainer.world.device, ())
    try:
        yield
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.stopwatch, trainer.state.flops = stopwatch, flops
        restore_random_state(generators)


def first_batches(trainer: Trainer, count: int) -> list[Any]:
    """Return the next `count` microbatches of the run, without advancing its position in the data."""
    progress = trainer.progress
    with closing(trainer.task.batches(progress.cursor)) as batches:
        return [next(batches) for _ in range(count)]


class WorstCase:
    """Microbatches of training and evaluation that need the most memory; `evaluation` may be None."""

    def __init__(self, trainer: Trainer) -> None:
        task, sizes = trainer.task, trainer.config.trainer
        stretched = fill_with_text(first_batches(trainer, 1)[0], sizes.per_device_train_batch_size)
        self.train: Microbatch = task.worst_case(stretched, is_training=True)
        first = None if task.evaluation is None else next(iter(task.evaluation()), None)
        self.evaluation: Microbatch | None = None
        if first is not None:
            stretched = fill_with_text(first, sizes.per_device_eval_batch_size)
            self.evaluation = task.worst_case(stretched, is_training=False)

    def step(self, trainer: Trainer) -> None:
        """Run forward and backward on the training microbatch. Raises `torch.OutOfMemoryError`."""
        with preserve_run_state(trainer):
            self._train(trainer)

    def evaluate(self, trainer: Trainer) -> None:
        """Run the evaluation microbatch, if there is one. Raises `torch.OutOfMemoryError`."""
        with preserve_run_state(trainer):
            self._evaluate(trainer)

    def run(self, trainer: Trainer) -> None:
        """Run forward and backward, then the evaluation, and wait. Raises `torch.OutOfMemoryError`."""
        with preserve_run_state(trainer):
            self._train(trainer)
            self._evaluate(trainer)
            if trainer.world.is_on_gpu:
                torch.cuda.synchronize(trainer.world.device)

    def _train(self, trainer: Trainer) -> None:
        step = trainer.task.step or steps.accumulate
        step(trainer, [self.train], max(1, self.train.num_targets))

    def _evaluate(self, trainer: Trainer) -> None:
        if self.evaluation is not None:
            evaluate_batch(trainer, self.evaluation)


def evaluate_batch(trainer: Trainer, batch: Any) -> Any:
    """Evaluate one microbatch; return the result of `Objective.evaluate`."""
    world, objective = trainer.world, trainer.task.objective
    objective.eval()
    with world.evaluation_context(trainer.module), world.autocast():
        found = objective.evaluate(**trainer.task.inputs(batch, world.device))
    objective.train()
    return found


def accumulation_error(trainer: Trainer) -> dict[str, Any]:
    """Compare the gradient of a step of two microbatches with the target-weighted mean of both gradients.

    A task whose loss compares the texts of a step has a reference instead (`Task.reference_step`). The second
    microbatch has fewer targets, a different number on every rank, so that an error such as a mean of means
    changes the gradient. Returns the relative difference, None if the mean is 0, and the numbers of targets.
    """
    first, second = first_batches(trainer, 2)
    second = with_fewer_targets(second, 4 + trainer.world.dp_rank)
    with preserve_run_state(trainer):
        generators = random_state()
        together, total = _accumulated_gradient(
            trainer, [first, second], trainer.task.step or steps.accumulate
        )
        restore_random_state(generators)  # the same dropout again
        (num_first, _), (num_second, _) = (steps.sum_counts(trainer, [each]) for each in (first, second))
        if reference := trainer.task.reference_step:
            wanted, _ = _accumulated_gradient(trainer, [first, second], reference)
        else:
            alone, other = (
                _accumulated_gradient(trainer, [each], steps.accumulate)[0] for each in (first, second)
            )
            pairs = zip(alone, other, strict=True)
            wanted = [(one * num_first + two * num_second) / total for one, two in pairs]
    squares = torch.zeros(2, dtype=torch.float64)
    for whole, expected in zip(together, wanted, strict=True):
        squares += torch.stack([(whole - expected).square().sum(), expected.square().sum()]).double()
    if trainer.world.is_sharded:  # each replica has the sum of all parts already
        squares = trainer.world.all_reduce_sum(squares.to(trainer.world.device))
    difference, size = squares.sqrt().tolist()
    return {
        "num_targets": [num_first, num_second],
        "relative_difference": difference / size if size else None,
    }


def with_fewer_targets(batch: Microbatch, keep_every: int) -> Microbatch:
    """Return the microbatch with only every `keep_every`-th of its targets, and of its masked tokens."""
    labels, num_targets = _keep_some_targets(batch.labels, keep_every)
    masked = None if batch.masked_labels is None else _keep_some_targets(batch.masked_labels, keep_every)[0]
    return replace(batch, labels=labels, num_targets=num_targets, masked_labels=masked)


def _keep_some_targets(tensor: Tensor, keep_every: int) -> tuple[Tensor, int]:
    """Return labels with every `keep_every`-th of their targets, and their number."""
    labels = tensor.numpy().copy()
    places = np.flatnonzero(is_target(labels))
    kept = places[::keep_every]
    labels.flat[np.setdiff1d(places, kept)] = ignored_label(labels)
    return torch.from_numpy(labels), len(kept)


def _accumulated_gradient(
    trainer: Trainer, batches: Sequence[Microbatch], step: Step
) -> tuple[list[Tensor], int]:
    """Return the gradients of a step, of this rank's shards, and the number of targets of all ranks.

    The gradients are copied to the host, because a nearly full device has no room for three copies.
    """
    num_targets, _ = steps.sum_counts(trainer, batches)
    step(trainer, batches, num_targets)
    gradients = [
        local_shard(each.grad).float().cpu().clone()
        for each in trainer.task.model.parameters()
        if each.grad is not None
    ]
    trainer.optimizer.zero_grad(set_to_none=True)
    return gradients, num_targets


class RepeatedBatch:
    """Endless iterator that repeats one microbatch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch

    def close(self) -> None:
        """Do nothing: it has no prefetch threads."""


def overfit(trainer: Trainer) -> dict[str, Any]:
    """Train 10 steps on the next microbatch at the peak learning rate; return the first and last loss.

    Changes the weights and the trainer: no other step of the run can follow.
    """
    losses = train_on_batch(trainer, first_batches(trainer, 1)[0])
    return {"steps": OVERFIT_STEPS, "first": losses[0], "last": losses[-1]}


def train_on_batch(trainer: Trainer, batch: Any) -> list[float]:
    """Train 10 steps on one microbatch at the peak learning rate; return the loss of each step.

    Changes the weights and the trainer: no other step of the run can follow.
    """
    trainer.batches.close()
    trainer.batches = RepeatedBatch(batch)
    trainer.scheduler = LambdaLR(trainer.optimizer, lambda _: 1.0)
    trainer.stopwatch = Stopwatch(trainer.world.device, ())
    losses = []
    for _ in range(OVERFIT_STEPS):
        trainer.progress.loss.take()
        steps.run_step(trainer)
        losses.append(trainer.progress.loss.take())
    trainer.guard.check()
    return losses


def wait_for_checkpoint(folder: Path) -> None:
    """Wait until the checkpoint `folder` is complete. Raises `ProjectError` REH002 after 120 seconds."""
    deadline_s = time.monotonic() + SAVE_LIMIT_S
    while not (folder / MANIFEST).exists():
        if time.monotonic() > deadline_s:
            message = f"the checkpoint was not complete within {SAVE_LIMIT_S:g} s"
            hint = "see the rank's log for errors of the save, and check the disk's speed and free space"
            raise ProjectError("REH002", message, hint, str(folder))
        time.sleep(POLL_S)


def fill_with_text(batch: Microbatch, rows: int) -> Microbatch:
    """Return the microbatch without padding, filled with its own tokens: `rows` full rows if not packed.

    The labels are not updated; `Task.worst_case` replaces them.
    """
    if batch.cu_seqlens is None:
        return _fill_padded_rows(batch, rows)
    total, slots = batch.input_ids.numel(), batch.cu_seqlens.numel() - 1
    full = replace(batch, input_ids=_real_tokens(batch, (total,)), num_tokens=total)
    return with_lengths(
        full, adversarial_lengths(total, slots, batch.max_seqlen, max_texts_per_example(batch))
    )


def adversarial_lengths(total: int, slots: int, longest: int, texts: int = 1) -> list[int]:
    """Return segment lengths that sum to `total`: half of it in the longest segments, the rest in short ones.

    `slots`: maximum number of segments, at least the number of rows. `longest`: row length. `texts`: the
    number of segments is a multiple of it.
    """
    num_long = max(1, total // longest // 2)
    rest, left = total - num_long * longest, slots - num_long
    if rest == 0:
        return [longest] * num_long
    left = min(left, rest)
    left -= (num_long + left) % texts
    short = [rest // left + (index < rest % left) for index in range(left)]
    return [longest] * num_long + short


def _fill_padded_rows(batch: Microbatch, rows: int) -> Microbatch:
    assert batch.attention_mask is not None
    rows -= rows % max_texts_per_example(batch)
    shape = (rows, batch.max_seqlen)
    positions = torch.arange(batch.max_seqlen).expand(shape).contiguous()
    mask = torch.ones(shape, dtype=batch.attention_mask.dtype)
    return replace(
        batch,
        input_ids=_real_tokens(batch, shape),
        position_ids=positions,
        attention_mask=mask,
        num_tokens=mask.numel(),
        num_segments=rows,
        sample_ids=torch.arange(rows),
        groups=group_texts(batch, rows),
    )


def _real_tokens(batch: Microbatch, shape: tuple[int, ...]) -> Tensor:
    """Return token ids of the given shape: the microbatch's unpadded ids, repeated as needed."""
    ids = batch.input_ids.flatten()
    if batch.attention_mask is not None:
        ids = ids[batch.attention_mask.flatten()]
    count = torch.Size(shape).numel()
    return ids.repeat(-(-count // ids.numel()))[:count].reshape(shape)
