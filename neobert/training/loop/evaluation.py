"""The evaluation: the whole split, over all ranks, by the task's own metrics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

from neobert.runfiles.phases import EVALUATION
from neobert.training.loop.signals import StopRequested
from neobert.training.loop.task import Metrics
from neobert.training.state.trainer import Trainer

log = logging.getLogger(__name__)


def evaluate(trainer: Trainer) -> dict[str, float | None]:
    """Return the task's metrics; none where the task has no evaluation. Its order is fixed.

    A metric is None where the split has no target for it, or where it is not finite: that is logged, and
    training goes on, which has a guard of its own.
    Raises `StopRequested` on all ranks if any rank received a stop request.
    """
    evaluation = trainer.task.evaluation
    if evaluation is None:
        return {}
    found: dict[str, float | None] = {}
    started_s = time.perf_counter()
    metrics = trainer.task.metrics()
    _score(trainer, metrics, _batches(trainer, iter(evaluation())))
    for name, value in metrics.values(trainer.world).items():
        is_number = value is None or math.isfinite(value)
        if not is_number:
            metric = name.removeprefix("eval/")
            step = trainer.progress.step
            log.warning("step %d: the evaluation's %s is not finite: %s", step, metric, value)
        found[name] = value if is_number else None
    trainer.state.evaluation_s = time.perf_counter() - started_s
    return found | {"time/evaluation_ms": trainer.state.evaluation_s * 1000}


def _score(trainer: Trainer, metrics: Metrics, batches: Iterator[Any]) -> None:
    """Run the objective over the microbatches of this rank, in evaluation mode."""
    world, objective = trainer.world, trainer.task.objective
    objective.eval()
    try:
        with world.whole(trainer.module):
            for batch in batches:
                trainer.pulse.enter(EVALUATION)
                with world.autocast():
                    score = objective.evaluate(**trainer.task.inputs(batch, world.device))
                metrics.add(score, batch)
    finally:
        objective.train()


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
