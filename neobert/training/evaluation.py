"""The evaluation: mean loss per target and share predicted right, over the whole split and all ranks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from neobert.training.pulse import EVALUATION
from neobert.training.signals import StopRequested
from neobert.training.trainer import Trainer

log = logging.getLogger(__name__)


def evaluate(trainer: Trainer) -> None:
    """Add loss, perplexity and accuracy, where the task has an evaluation. Its masks are fixed.

    All are None where the split has no target: a mean over nothing is no loss of zero. So is a loss that is
    no number, which is said in the log: training has its own guard, and goes on.
    Raises `StopRequested` on all ranks where one was asked to stop; nothing is added then.
    """
    row, evaluation = trainer.progress.row, trainer.task.evaluation
    if row is None or evaluation is None:
        return
    started_s = time.perf_counter()
    loss_sum, num_correct, num_targets = _sums(trainer, _batches(trainer, iter(evaluation())))
    if not math.isfinite(loss_sum):
        log.warning("step %d: the evaluation's loss is not finite: %s", row["step"], loss_sum)
    row["eval/loss"] = loss_sum / num_targets if num_targets and math.isfinite(loss_sum) else None
    row["eval/perplexity"] = perplexity(row["eval/loss"])
    row["eval/accuracy"] = num_correct / num_targets if num_targets else None
    trainer.evaluation_s = time.perf_counter() - started_s
    row["time/evaluation_ms"] = trainer.evaluation_s * 1000


def perplexity(loss: float | None) -> float | None:
    """Return exp(loss); None without a loss, and for one above 709 nats, whose exponential is no double."""
    try:
        return None if loss is None else math.exp(loss)
    except OverflowError:
        return None


def _sums(trainer: Trainer, batches: Iterator[Any]) -> tuple[float, int, int]:
    """Return summed loss, hits and targets over all ranks."""
    world, objective = trainer.world, trainer.task.objective
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    num_targets = 0
    objective.eval()
    try:
        with world.whole(trainer.module):
            for batch in batches:
                trainer.pulse.enter(EVALUATION)
                with world.autocast():
                    score = objective.evaluate(**trainer.task.inputs(batch, world.device))
                sums += torch.stack([score.loss_sum, score.num_correct])
                num_targets += batch.num_targets
    finally:
        objective.train()
    loss_sum, num_correct = world.add_up(sums).tolist()
    return loss_sum, int(num_correct), *world.sum_over_ranks([num_targets])


def _batches(trainer: Trainer, stream: Iterator[Any]) -> Iterator[Any]:
    """Yield this rank's microbatches; all ranks go round together until none has any, or one has to stop."""
    while True:
        batch = _next(trainer, stream)
        num_left, *votes = trainer.world.sum_over_ranks([int(batch is not None), *trainer.signals.votes])
        trainer.signals.obey(votes)
        if not num_left:
            return
        if batch is not None:
            yield batch


def _next(trainer: Trainer, stream: Iterator[Any]) -> Any | None:
    try:
        with trainer.signals.interrupting():
            return next(stream, None)
    except StopRequested:
        return None
